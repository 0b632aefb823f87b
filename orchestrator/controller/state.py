"""The state of the controller: members, the present generation, what is under way; and questions about these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.config.plan import Members, Timeouts
from orchestrator.controller.events import Begin, CardFailed, Ended, FallbackPair, Heartbeat, Role
from orchestrator.controller.member_table import MemberTable, Status
from orchestrator.records.progress import Progress, latest

Phase = Literal["preparing", "running", "regrouping", "paused", "saving", "ended"]


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """The requirements of a run."""

    shards: int  # the slices into which each step is divided
    # how many processes. With several stages each worker hosts one, and a step is committed by a second vote, so that a
    # loss costs no step while every stage keeps a worker
    members: Members
    timeouts: Timeouts  # how long a start or a step may go without progress, and one that is accused without an answer
    checkpoint: int | None = None  # the step of the newest committed one as the run begins; None unless it is a resume
    whole: bool = False  # no generation begins without all of them, because the layout determines the result
    stores: bool = True  # checkpoints can be written
    falls_back: bool = False  # what a lost shard kept is replaced by what another one keeps; otherwise all go back
    reports_stragglers: bool = False  # micro-batches are alike, so that a worker far slower than others is worth a word
    by_speed: bool = False  # shards are assigned by how fast workers are seen to be; who hosts them changes no result
    claims: bool = False  # workers of one node share their shards in a step, unless shards keep something
    leaps: bool = False  # members go from the end of a segment of the run to the next one, so some are many steps ahead
    # by site, the shards that only a worker may host whose node holds the site's bytes
    sites: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sits_out: bool = False  # the run, once it has begun, goes on without a site that is away; otherwise it waits
    generation: int = 0  # the first number to give, above all that an earlier part of the run has used
    member: int = 0  # likewise the first id

    @property
    def supersedes(self) -> bool:
        """Whether what is done again after a loss may come out otherwise, and counts in the place of what was."""
        return self.falls_back or self.sits_out

    def __post_init__(self) -> None:
        asked, most = self.members, self.shards * self.members.stages
        if not 1 <= asked.stages <= asked.least <= asked.start <= asked.most <= most:
            raise ValueError(
                f"1 <= stages {asked.stages} <= least {asked.least} <= start {asked.start} <= most {asked.most} <= shards "
                f"{most} must hold"
            )


@dataclass(frozen=True, kw_only=True)
class Member:
    """A living member."""

    id: int  # never reused; the order of ids is the order of age
    role: Role  # what it does in the run
    asked: float  # when its start was ordered
    ready: float | None = None  # since when it is prepared; None before
    run_manifest: Mapping[str, Any] = field(default_factory=dict)  # as in `Ready`, from then on; empty before
    can_restore: bool = False  # likewise
    joins: bool = False  # it got ready while a generation had room for it; a spare did not
    node: int = 0  # as in `Ready`, from then on
    speed: float = 1.0  # likewise
    sites: tuple[str, ...] = ()  # likewise
    card: str = ""  # the UUID of its GPU, as it has told; empty where it has none, or none yet
    leaves: float | None = None  # its node goes away, and until then others are waited for; None where it stays
    lately: tuple[float, ...] = ()  # its last reports of the seconds a micro-batch takes; they outlive a generation
    rank: int | None = None  # in the present generation; None where it has no part in it
    stage: int | None = None  # hosted from its first generation on; None before, and where workers have the whole model
    progress: Progress | None = None  # as of its last report; None for the initial state
    report: Ended | None = None  # how it ended the present generation; None while it is at work
    held: tuple[int, ...] = ()  # the shards whose state it has as of its last committed step
    staged: tuple[int, ...] = ()  # the shards whose state it has as of the step after that
    holds_sum: bool = False  # as of its report
    heard: float = 0.0  # when it last answered
    moved: float = 0.0  # when its compute thread last moved
    heartbeat: Heartbeat | None = None  # its last one while it starts, or in the present generation; None before

    @property
    def name(self) -> str:
        return f"{self.role} {self.id}"

    @property
    def has_finished(self) -> bool:
        """Whether it has done all steps, as of its report."""
        return self.report is not None and self.report.kind == "finished"

    @property
    def status(self) -> Status:
        """As what it is counted."""
        return Status(
            role=self.role,
            ready=self.ready is not None,
            joins=self.joins,
            leaves=self.leaves is not None,
            takes_part=self.rank is not None,
            reported=self.report is not None,
            finished=self.has_finished,
        )


@dataclass(frozen=True, kw_only=True)
class LostMember:
    """A member that was lost in the present generation before it reported.

    how: it died; it was killed because its compute thread stood still, because it was not heard of (silent), because it or
    its machine computed wrongly, or because its GPU failed. certain: its heartbeat is from the moment of its death, and not
    from some time before.
    """

    member: Member
    how: Literal["died", "stalled", "silent", "wrong", "card"]
    certain: bool = False


@dataclass(frozen=True, kw_only=True)
class GenerationStatus:
    """The present (or last) generation."""

    begin: Begin  # the command it began with
    steps: int  # how many were committed when it began
    before: Mapping[int, Progress | None]  # by member, its progress when the generation began
    called_off: float | None = None  # when members were told to leave it
    asked: frozenset[str] = frozenset()  # what its members were asked to request
    withdrawn: tuple[float, str] | None = None  # when the first member withdrew, and why; None where none has
    lost_members: tuple[LostMember, ...] = ()  # those lost before they reported
    lost: int = 0  # how many of its members are gone, reported or not
    judged: bool = False  # the verdict of a check has been carried out

    @property
    def number(self) -> int:
        return self.begin.generation


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """A loss, a join or a restart that ends with the next completed step. why: as of `Recovered`."""

    kind: Literal["lost", "joined", "restarted"]
    since: float
    steps_lost: int = 0
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Balance:
    """The memory by which the controller judges whether shards should be assigned anew. A round is over when every worker of
    the generation has told its time again."""

    reported: frozenset[int] = frozenset()  # the workers that have told their time in this round
    better: int = 0  # rounds in a row in which another assignment was much better
    moved: int = 0  # times that shards were assigned anew by speed
    # the workers that are far slower than the others: since when, and for how many rounds
    slow: Mapping[int, tuple[float, int]] = field(default_factory=dict)
    announced: frozenset[int] = frozenset()  # the slow workers that the user was told of


@dataclass(frozen=True, kw_only=True)
class ControllerState:
    """All that the controller remembers. Times are seconds of the clock that `decide` is given."""

    requirements: Requirements  # what the run requires
    started: float  # when the run began
    phase: Phase = "preparing"  # the present one
    since: float = 0.0  # when the present phase began
    listened: float = 0.0  # the last tick
    members: MemberTable[Member] = field(default_factory=MemberTable[Member])  # the living, by id
    next_member: int = 0  # the next id to give; lower ones are living or gone
    run_manifest: Mapping[str, Any] | None = None  # what the first generation agreed on; None before
    generation: GenerationStatus | None = None  # the present or last one; None before the first
    checkpoint: int | None = None  # the step of the newest committed one; None where there is none
    steps_seen: int = 0  # steps that the driver has seen completed
    clocks: tuple[int, ...] = ()  # as in `events.Stepped`
    best: int = 0  # the most steps that the driver has ever seen completed
    mark: Progress | None = None  # what has to be passed to count as progress; None for the initial state
    without_progress: tuple[int, int] = (0, 0)  # generations since `mark` that ended without, and with, a loss
    restarts: int = 0  # losses of all state in a row
    failures: int = 0  # failed starts in a row
    failed: int = 0  # members below this id were ordered before the last failed start was known
    deaths: int = 0  # in preparation
    oom_kills: int | None = None  # as of the last `Died`
    trouble: str = ""  # why the last member could not start or stay, for the message where the run cannot go on
    retry: float | None = None  # when a start is tried again, after there was no room; None where there was
    later: float | None = None  # when a start is tried again, after too many in a row failed; None where they did not
    link_failures: frozenset[frozenset[int]] = frozenset()  # pairs of living members that have lost each other once
    # of members, by micro-batch (step, shard, stage): for each whether it was seen (True) or inferred
    losses: Mapping[tuple[int, int, int], tuple[bool, ...]] = field(default_factory=dict)
    # likewise of members whose compute thread stood still
    stalls: Mapping[tuple[int, int, int], tuple[bool, ...]] = field(default_factory=dict)
    recoveries: tuple[Recovery, ...] = ()  # those that are not complete yet
    # which shards went on with others' state, each with the advances that all replicas had made then
    fallbacks: tuple[tuple[int, FallbackPair], ...] = ()
    distrusted: frozenset[int] = frozenset()  # nodes that start nobody any more, since one there has computed wrongly
    # pairs of members between which something has arrived damaged once
    damaging: frozenset[frozenset[int]] = frozenset()
    card_failures: tuple[CardFailed, ...] = ()  # of GPUs, in order
    without_card: int = 0  # workers that the first generation does without, since no card is left for them
    interrupted: tuple[float, str] | None = None  # when, and the signal; None where nobody asked the run to stop
    balance: Balance = Balance()  # whether shards should be assigned anew
    # no member of the present generation was heard of, or moved, before this; so nobody can be stuck until long after it
    all_heard: float = 0.0
    start_moved: float = 0.0  # some member's start has made progress then, or later
    joiners_moved: float = 0.0  # every member that is not ready has made progress then, or later

    def name(self, member: int) -> str:
        known = self.members.get(member)
        return known.name if known is not None else f"member {member}"


def living(state: ControllerState, role: Role) -> list[Member]:
    """The oldest first."""
    return [member for member in state.members.values() if member.role == role]


def remaining(state: ControllerState, role: Role) -> list[Member]:
    """Those of the living whose nodes stay."""
    return [member for member in living(state, role) if member.leaves is None]


def staying(state: ControllerState, role: Role) -> list[Member]:
    """And of these those who are ready."""
    return [member for member in remaining(state, role) if member.ready is not None]


def present(state: ControllerState) -> list[Member]:
    """The living members of the present generation, by rank."""
    if state.generation is None:
        return []
    return [state.members[member] for member in state.generation.begin.members if member in state.members]


def waiting(state: ControllerState) -> list[Member]:
    """The members of the present generation that have not reported."""
    return [member for member in present(state) if member.report is None]


def progressed(member: Member) -> float:
    """When its start last made progress: ordered, process answered, module imported, part built, ready."""
    return member.moved if member.ready is None else member.ready


def room(state: ControllerState) -> int:
    """How many workers more the present generation could take."""
    return state.requirements.members.most - state.members.count("worker", takes_part=True, leaves=False)


def top(members: Iterable[Member]) -> Progress | None:
    """The progress of the farthest among them; None where all of them have the initial state."""
    return latest(member.progress for member in members)


def quorum(state: ControllerState) -> int:
    """How many workers the next generation needs. One of each stage is enough to save the state, unless the layout determines
    the result."""
    if state.interrupted is not None and not state.requirements.whole:
        return state.requirements.members.stages
    members = state.requirements.members
    return members.start - state.without_card if state.generation is None else members.least
