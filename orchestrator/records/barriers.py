"""The sync barriers of an asynchronous run, one line each: all that its settings do not determine. A rerun repeats them.

    {"rest": 3, "steps": 60, "clocks": [61, 60], "heirs": [], "updates": "PAAAAB...", "evaluate": false, "parameters": "9f..."}

    rest          The number of the barrier.
    steps         The steps of the trace, up to there.
    clocks        The updates that each shard has made.
    heirs         Pairs (lost, heir) of shards. The lost one goes on with what the heir keeps.
    updates       The async phase before this barrier (`clocks.py`).
    evaluate      Whether somebody asked for an evaluation.
    parameters    Their fingerprint afterwards, which is an outcome.

The updates of gossip come in no order that has to be known, so `updates` is empty there. Two more outcomes say how far its
models are apart: consensus_distance and spectral_gap (hexadecimal floats).

It does not know how async phases are executed or repeated.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.records.clocks import AsyncPhase, Clocks
from orchestrator.records.identity import canonical

Barrier = Mapping[str, Any]

_KEYS = frozenset({"rest", "steps", "clocks", "heirs", "updates", "evaluate", "parameters"})
_GOSSIP = frozenset({"consensus_distance", "spectral_gap"})
OUTCOME = ("parameters", *sorted(_GOSSIP))
ORDER = ("updates", "clocks", "heirs", "steps", "evaluate")


@dataclass(frozen=True)
class Staleness:
    """The staleness in one async phase."""

    steps: int  # of the trace at its end
    clocks: Clocks  # per shard, at its end
    largest: int  # staleness of an update
    # for each update, in canonical order: its shard, and by how many updates that was ahead of the slowest one as its worker
    # knew it
    updates: tuple[tuple[int, int], ...]


def digest(barriers: Iterable[Barrier]) -> str:
    """SHA-256 of the records in order."""
    hashed = hashlib.sha256()
    for barrier in barriers:
        hashed.update(canonical(barrier).encode() + b"\n")
    return hashed.hexdigest()


def check(barriers: Iterable[Any], shards: int | None = None) -> None:
    """Raises ValueError that says which rest cannot be, and why. shards: of the run, where that is known."""
    for _ in checked(barriers, shards):
        pass


def checked(barriers: Iterable[Any], shards: int | None = None) -> Iterator[Any]:
    """The same, one after the other. Raises ValueError as `check`."""
    clocks, steps = None, 0
    for number, barrier in enumerate(barriers):
        problem = _malformed(barrier, number)
        if problem is None and barrier["steps"] < steps:
            problem = f"it stands after {barrier['steps']} steps, and the one before after {steps}"
        if problem is None:
            start = clocks or (0,) * (len(barrier["clocks"]) if shards is None else shards)
            problem = _misleading(barrier, start)
        if problem is not None:
            raise ValueError(f"rest {number}: {problem}")
        clocks, steps = tuple(barrier["clocks"]), barrier["steps"]
        yield barrier


def async_phases(barriers: Iterable[Barrier]) -> Iterator[AsyncPhase]:
    """The async phase before each sync barrier, where there are any. Raises ValueError for a damaged one."""
    clocks: Clocks | None = None
    for barrier in barriers:
        if barrier["updates"]:
            yield _async_phase(barrier, clocks or (0,) * len(barrier["clocks"]))
        clocks = tuple(barrier["clocks"])


def staleness(barriers: Sequence[Barrier]) -> list[Staleness]:
    """Raises ValueError for a damaged record."""
    found = []
    for barrier, async_phase in zip(
        [barrier for barrier in barriers if barrier["updates"]], async_phases(barriers), strict=True
    ):
        ahead = tuple(async_phase.staleness())
        largest = max((each for _, each in ahead), default=0)
        found.append(Staleness(barrier["steps"], tuple(barrier["clocks"]), largest, ahead))
    return found


def _malformed(barrier: Any, number: int) -> str | None:
    if not isinstance(barrier, dict) or barrier.keys() not in (_KEYS, _KEYS | _GOSSIP):
        return f"it has to have {', '.join(sorted(_KEYS))}"
    if barrier["rest"] != number:
        return f"it has the number {barrier['rest']}"
    clocks, steps = barrier["clocks"], barrier["steps"]
    if not isinstance(clocks, list) or not all(isinstance(number, int) for number in [*clocks, steps]):
        return "its steps have to be a whole number and its clocks a list of those"
    return None if isinstance(barrier["updates"], str) else "its updates have to be a text"


def _misleading(barrier: Barrier, start: Clocks) -> str | None:
    if not barrier["updates"]:
        return None
    try:
        end = _async_phase(barrier, start).end
    except ValueError as error:
        return str(error)
    return (
        None
        if list(end) == barrier["clocks"]
        else f"its updates lead to the clocks {list(end)}, and it has {barrier['clocks']}"
    )


def _async_phase(barrier: Barrier, start: Clocks) -> AsyncPhase:
    return AsyncPhase.decode(base64.b64decode(barrier["updates"], validate=True), start)
