"""Into how many stages a model is cut where that is `auto`: as few as leave each worker room. Pure.

Stages cost time, since workers wait for each other, and redundancy; what they give is memory. So a whole model for each
worker is best wherever it fits, and speed is no reason for more.

On GPUs the room is on the card. In host memory all workers have a whole model at once where that is what they train; to cut it
they take turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.common.figures import megabytes, sized
from orchestrator.common.gpu_memory import PROCESS_BYTES
from orchestrator.errors import ConfigurationError


@dataclass(frozen=True)
class Need:
    """The memory that a number of stages needs. bytes: of host memory, of the worker that needs most with so many stages,
    while it prepares and when it trains; card_bytes: of its GPU, likewise, with activations; 0 where none computes."""

    stages: int
    bytes: int
    card_bytes: int = 0


@dataclass(frozen=True)
class StageChoice:
    """The number of stages that was chosen. needs: that were looked at; room_bytes: of host memory, for each worker;
    card_room_bytes: of its GPU, for each; None where none computes; reason: a sentence for a person, with the figures."""

    stages: int
    needs: tuple[Need, ...]
    room_bytes: int
    reason: str
    card_room_bytes: int | None = None


class Room(NamedTuple):
    """For each worker, in bytes."""

    host: int  # of host memory, where all have it at once
    in_turn: int = 0  # of host memory, for one that prepares while the others wait; counts where GPUs compute
    card: int | None = None  # of its GPU; None where none computes

    def holds(self, need: Need) -> bool:
        if self.card is None:
            return need.bytes <= self.host
        return need.card_bytes <= self.card and need.bytes <= (self.host if need.stages == 1 else self.in_turn)

    def __str__(self) -> str:
        if self.card is None:
            return megabytes(max(0, self.host))
        together = f"{sized(max(0, self.host))} of host memory, {sized(max(0, self.in_turn))} in turns,"
        return f"{sized(max(0, self.card))} of a GPU and {together}"


def room_of(available_bytes: int, workers: int, beside_bytes: int, card: int | None = None) -> Room:
    """The memory that each worker may take here. workers: that share the host memory that is available; beside_bytes: of a
    worker's process before it has a model; card: as `card_room` has it."""
    return Room(available_bytes // workers - beside_bytes, available_bytes - workers * beside_bytes, card)


def card_room(free_bytes: Sequence[int], sharing: int, limit: int | None = None) -> int:
    """The bytes of its GPU that a worker can have. free_bytes: by card, at least one if there is no limit; sharing: workers on
    a card, at most; limit: that no worker may exceed."""
    rooms = [free // sharing - PROCESS_BYTES for free in free_bytes]
    return min([*rooms, *([] if limit is None else [limit])])


def choose_stages(needs: Iterable[Need], room: Room) -> StageChoice:
    """The smallest number of stages that fits. needs: of one stage, two, and so on; read only up to the first that fits. Raises
    ConfigurationError where none fits."""
    seen: list[Need] = []
    for need in needs:
        seen.append(need)
        if room.holds(need):
            return StageChoice(need.stages, tuple(seen), room.host, _reason(seen, room), room.card)
    rows = ", ".join(f"{_size(need)} {_with(need.stages)}" for need in seen)
    of_card = room.card is not None
    raise ConfigurationError(
        [
            f"cluster.stages: auto: a worker needs about {rows}, and {room} are there for each, beside what its process takes"
        ],
        "raise cluster.workers, of which each hosts one stage, on "
        + ("GPUs or machines with more memory, or set run.recompute=true" if of_card else "machines with more memory")
        + "; or use a smaller model",
        code="stages.memory",
    )


def _reason(seen: list[Need], room: Room) -> str:
    *before, chosen = seen
    there = f"{room} are there for each"
    if not before:
        return f"a worker needs about {_size(chosen)} for the whole model, and {there}"
    return (
        f"a worker needs about {_size(chosen)} {_with(chosen.stages)} and {_size(before[-1])} "
        f"{_with(before[-1].stages)}, and {there}"
    )


def _size(need: Need) -> str:
    if not need.card_bytes:
        return megabytes(need.bytes)
    return f"{sized(need.card_bytes)} of its GPU and {sized(need.bytes)} of host memory"


def _with(stages: int) -> str:
    return "for the whole model" if stages == 1 else f"with {stages} stages"
