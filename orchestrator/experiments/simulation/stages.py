"""Into how many stages a model is cut where that is `auto`: as few as leave each worker room. Pure.

Stages cost time, since workers wait for each other, and redundancy; what they give is memory. So a whole model for each
worker is best wherever it fits, and speed is no reason for more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.common.values import megabytes
from orchestrator.errors import ConfigurationError


@dataclass(frozen=True)
class Need:
    """bytes: of the worker that needs most, with so many stages, while it prepares and when it trains."""

    stages: int
    bytes: int


@dataclass(frozen=True)
class StageChoice:
    """needs: that were looked at; room_bytes: for each worker; reason: a sentence for a person, with the figures."""

    stages: int
    needs: tuple[Need, ...]
    room_bytes: int
    reason: str


def choose_stages(needs: Iterable[Need], available_bytes: int, workers: int, beside_bytes: int) -> StageChoice:
    """needs: of one stage, two, and so on, asked for only as far as that goes on; workers: that share what is available;
    beside_bytes: of a worker's process before it has a model. Raises ConfigurationError where nothing fits."""
    room = available_bytes // workers - beside_bytes
    seen: list[Need] = []
    for need in needs:
        seen.append(need)
        if need.bytes <= room:
            return StageChoice(need.stages, tuple(seen), room, _reason(seen, room))
    rows = ", ".join(f"{megabytes(need.bytes)} {_with(need.stages)}" for need in seen)
    raise ConfigurationError(
        [
            f"cluster.stages: auto: a worker needs about {rows}, and {megabytes(max(0, room))} are there for each of {workers} "
            "beside what its process takes"
        ],
        "raise cluster.workers, of which each hosts one stage, on machines with more memory; or use a smaller model",
        code="stages.memory",
    )


def _reason(seen: list[Need], room: int) -> str:
    *before, chosen = seen
    there = f"{megabytes(room)} are there for each"
    if not before:
        return f"a worker needs about {megabytes(chosen.bytes)} for the whole model, and {there}"
    return (
        f"a worker needs about {megabytes(chosen.bytes)} {_with(chosen.stages)} and {megabytes(before[-1].bytes)} "
        f"{_with(before[-1].stages)}, and {there}"
    )


def _with(stages: int) -> str:
    return "for the whole model" if stages == 1 else f"with {stages} stages"
