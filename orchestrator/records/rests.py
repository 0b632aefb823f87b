"""The rests of an asynchronous run, one line each: all that its settings do not determine. A rerun repeats them.

    {"rest": 3, "steps": 60, "clocks": [61, 60], "heirs": [], "updates": "PAAAAB...", "evaluate": false, "parameters": "9f..."}

rest: its number; steps: of the trace, up to there; clocks: per shard, how many updates it has made; heirs: (lost, heir) pairs
of shards, the lost one goes on with what the heir keeps; updates: the sprint before this rest, see `clocks.py`; evaluate:
somebody asked for an evaluation; parameters: their fingerprint afterwards, which is an outcome. Of gossip, whose updates come
in no order that would have to be known, `updates` is empty, and two more outcomes say how far the models are apart:
consensus_distance and spectral_gap (hexadecimal floats).

What it does not do: know how sprints are executed or repeated.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.records.clocks import AsyncPhase, Clocks
from orchestrator.records.identity import canonical

Rest = Mapping[str, Any]

_KEYS = frozenset({"rest", "steps", "clocks", "heirs", "updates", "evaluate", "parameters"})
_GOSSIP = frozenset({"consensus_distance", "spectral_gap"})
OUTCOME = ("parameters", *sorted(_GOSSIP))
ORDER = ("updates", "clocks", "heirs", "steps", "evaluate")


@dataclass(frozen=True)
class Staleness:
    """Of one sprint. steps: of the trace at its end; clocks: per shard, at its end; updates: (shard, by how many updates it was
    ahead of the slowest one as its worker knew it) of each, in canonical order; largest: of these numbers."""

    rest: int
    steps: int
    clocks: Clocks
    largest: int
    updates: tuple[tuple[int, int], ...]


def digest(rests: Iterable[Rest]) -> str:
    """SHA-256 of the records in order."""
    hashed = hashlib.sha256()
    for rest in rests:
        hashed.update(canonical(rest).encode() + b"\n")
    return hashed.hexdigest()


def check(rests: Sequence[Any], shards: int | None = None) -> None:
    """Raises ValueError that says which rest cannot be, and why. shards: of the run, where that is known."""
    clocks, steps = None, 0
    for number, rest in enumerate(rests):
        problem = _malformed(rest, number)
        if problem is None and rest["steps"] < steps:
            problem = f"it stands after {rest['steps']} steps, and the one before after {steps}"
        if problem is None:
            start = clocks or (0,) * (len(rest["clocks"]) if shards is None else shards)
            problem = _misleading(rest, start)
        if problem is not None:
            raise ValueError(f"rest {number}: {problem}")
        clocks, steps = tuple(rest["clocks"]), rest["steps"]


def sprints(rests: Iterable[Rest]) -> Iterator[AsyncPhase]:
    """The sprint before each rest, where there are any. Raises ValueError for a damaged one."""
    clocks: Clocks | None = None
    for rest in rests:
        if rest["updates"]:
            yield _sprint(rest, clocks or (0,) * len(rest["clocks"]))
        clocks = tuple(rest["clocks"])


def staleness(rests: Sequence[Rest]) -> list[Staleness]:
    """Raises ValueError for a damaged record."""
    found = []
    for rest, sprint in zip([rest for rest in rests if rest["updates"]], sprints(rests), strict=True):
        ahead = tuple(sprint.staleness())
        largest = max((each for _, each in ahead), default=0)
        found.append(Staleness(rest["rest"], rest["steps"], tuple(rest["clocks"]), largest, ahead))
    return found


def _malformed(rest: Any, number: int) -> str | None:
    if not isinstance(rest, dict) or rest.keys() not in (_KEYS, _KEYS | _GOSSIP):
        return f"it has to have {', '.join(sorted(_KEYS))}"
    if rest["rest"] != number:
        return f"it has the number {rest['rest']}"
    clocks, steps = rest["clocks"], rest["steps"]
    if not isinstance(clocks, list) or not all(isinstance(number, int) for number in [*clocks, steps]):
        return "its steps have to be a whole number and its clocks a list of those"
    return None if isinstance(rest["updates"], str) else "its updates have to be a text"


def _misleading(rest: Rest, start: Clocks) -> str | None:
    if not rest["updates"]:
        return None
    try:
        end = _sprint(rest, start).end
    except ValueError as error:
        return str(error)
    return (
        None
        if list(end) == rest["clocks"]
        else f"its updates lead to the clocks {list(end)}, and it has {rest['clocks']}"
    )


def _sprint(rest: Rest, start: Clocks) -> AsyncPhase:
    return AsyncPhase.decode(base64.b64decode(rest["updates"], validate=True), start)
