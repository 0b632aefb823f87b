"""Who belongs to a run: its members, the present generation, and how the next one is made of the living. Pure.

A generation is made when every member of the one before has reported or is gone, so that nobody can still touch a region of
memory or commit a step (rule C2). Whoever is at the top position gives its state to all who are not (rule D1); a worker of the
last generation goes before one that holds no state yet, and ranks go by age.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from orchestrator.control.events import Begin, Finished, Left, Position, Pulse, Role
from orchestrator.control.placement import place
from orchestrator.errors import Inconsistent

Phase = Literal["preparing", "running", "regrouping", "paused", "saving", "ended"]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a run asks for.

    start: workers that must be ready to begin; least: it pauses below; most: it grows to. servers: 0 where the topology has none.
    checkpoint: the newest committed one when the run begins, so None unless it is a resume. stores: checkpoints can be written.
    generation, member: the first numbers to give, above all that an earlier part of the run has used.
    """

    shards: int
    start: int
    least: int
    most: int
    spares: int = 0
    servers: int = 0
    start_timeout_s: float
    step_timeout_s: float
    checkpoint: int | None = None
    stores: bool = True
    generation: int = 0
    member: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.start <= self.most <= self.shards:
            raise ValueError(
                f"1 <= least {self.least} <= start {self.start} <= most {self.most} <= shards {self.shards} must hold"
            )


@dataclass(frozen=True, kw_only=True)
class Member:
    """A living member. asked: when its start was ordered; ready: since when it is prepared; joins: it was ready to join a running
    generation with room for it (a spare was not). heard, moved: when it last answered, and when its compute thread last moved.
    """

    id: int
    role: Role
    asked: float
    ready: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    can_restore: bool = False
    joins: bool = False
    position: Position | None = None
    report: Left | Finished | None = None
    heard: float = 0.0
    moved: float = 0.0
    pulse: Pulse | None = None

    @property
    def name(self) -> str:
        return f"{self.role} {self.id}"


@dataclass(frozen=True, kw_only=True)
class Fallen:
    """A worker that was lost in the present generation. how: whether it died, or stood still, or was put out of the generation."""

    member: Member
    rank: int
    how: Literal["died", "stalled", "put out"]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """The present (or last) generation. before: each member's position when it began; asked: what its members were asked for."""

    begin: Begin
    before: Mapping[int, Position | None]
    called_off: bool = False
    asked: frozenset[str] = frozenset()
    withdrawn: tuple[float, str] | None = None
    fallen: tuple[Fallen, ...] = ()

    @property
    def number(self) -> int:
        return self.begin.generation

    def rank(self, member: int) -> int:
        return self.begin.members.index(member)


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """Something that the next completed step makes good."""

    kind: Literal["lost", "joined", "restarted"]
    since: float
    steps_lost: int = 0


@dataclass(frozen=True, kw_only=True)
class State:
    """All that the controller remembers.

    members: the living; gone: ids of those that are no more. next_member: the next id to give. facts: what generation 0 agreed on.
    checkpoint: the newest committed one. seen: steps that the driver has seen completed. mark: the position that has to be passed to
    count as progress; fruitless: generations since then that ended without and with a loss; restarts: losses of all state in a row.
    failures: starts in a row that came to nothing. deaths: in preparation. retry: when a start is tried again after there was no room.
    quarrels: pairs of living members that have lost each other once. losses, stalls: by micro-batch, whether each was seen or inferred.
    recoveries: open ones. interrupted: the signal and when. since: when the present phase began. listened: the last tick.
    """

    terms: Terms
    started: float
    phase: Phase = "preparing"
    since: float = 0.0
    listened: float = 0.0
    members: Mapping[int, Member] = field(default_factory=dict)
    gone: frozenset[int] = frozenset()
    next_member: int = 0
    facts: Mapping[str, Any] | None = None
    generation: Generation | None = None
    checkpoint: int | None = None
    seen: int = 0
    mark: Position = (0, 0)
    fruitless: tuple[int, int] = (0, 0)
    restarts: int = 0
    failures: int = 0
    deaths: int = 0
    trouble: str = ""
    retry: float | None = None
    quarrels: frozenset[frozenset[int]] = frozenset()
    losses: Mapping[tuple[int, int], tuple[bool, ...]] = field(default_factory=dict)
    stalls: Mapping[tuple[int, int], tuple[bool, ...]] = field(default_factory=dict)
    recoveries: tuple[Recovery, ...] = ()
    interrupted: tuple[float, str] | None = None
