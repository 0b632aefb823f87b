"""The events that the controller receives and the commands that it returns: plain values.

The driver turns reports of Ray, of the members and of the user into events, and carries out the commands; it decides
nothing. A member is named by its id, which is never reused and grows with every start, so the order of ids is the order
of age. A member that was never given a state has the progress None: it has the initial state, which it has built itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.controller.checking import Verdict
from orchestrator.errors import OrchestratorError
from orchestrator.records.progress import Activity, Progress

Move = tuple[int, int, tuple[int, ...]]  # donor, recipient, shards
FallbackPair = tuple[int, int]  # a shard whose state is lost, and the one whose state it goes on with
Role = Literal["worker", "server"]


@dataclass(frozen=True)
class Ready:
    """A member is prepared."""

    member: int  # its id
    run_manifest: Mapping[str, Any]  # what it found out about the run; a server: nothing
    can_restore: bool = False  # whether it reaches the checkpoints
    node: int = 0  # the same number for all that share memory, and for nobody else; 0 for all where there is one node
    speed: float = 1.0  # declared, in proportion to others'
    sites: tuple[str, ...] = ()  # whose bytes its node holds
    card: str = ""  # the UUID of its GPU; empty where it computes on none, or that is not known


@dataclass(frozen=True)
class Ended:
    """How a generation ended for one member, as the member tells it; its own errors are `Failed` instead."""

    # why: all steps are done; it lost contact with a peer; it was called off; a vote; another's shard failed; a check
    kind: Literal["finished", "peer", "called off", "regroup", "stop", "withdrew", "distrust"]
    progress: Progress | None  # as of its last committed step; None for the initial state
    accuses: int | None = None  # the rank it lost contact with; None where that one said farewell, or `kind` is another
    why: str = ""  # the reason in words, for messages
    held: tuple[int, ...] = ()  # the shards whose state it has as of its last committed step
    staged: tuple[int, ...] = ()  # the shards whose state it has as of the step after that
    holds_sum: bool = False  # with stages: it has its stage's sum for the step after that, and has not applied it
    verdict: Verdict | None = None  # of a check, the same at all members; None for every other reason
    digest: str | None = None  # of the final parameters, at a worker that finished; None otherwise


@dataclass(frozen=True)
class Reported:
    """A generation has ended for a member, which has done all steps, or waits for the next one."""

    member: int  # its id
    generation: int  # the number of the one that has ended for it
    ended: Ended  # how


@dataclass(frozen=True)
class Failed:
    """An error that another try would repeat: the pipeline raised, a number is not finite, replicas disagree.

    member: whose; None where the driver found it.
    """

    member: int | None
    error: OrchestratorError


@dataclass(frozen=True)
class CardFailed:
    """A worker's GPU failed, and with it what its process can do."""

    member: int  # its id
    error: OrchestratorError  # what the run ends with where nobody else can go on
    code: str  # of `common.card_faults`
    card: str  # the UUID; empty where that is not known
    step: int | None  # what it computed when the failure showed; None where it did something else
    shard: int | None  # likewise
    prepares: bool = False  # whether it showed before the member was ready


@dataclass(frozen=True)
class Heartbeat:
    """A member's control thread answered just now."""

    member: int  # its id
    activity: Activity  # at present
    step: int | None  # in which it is; None outside of steps
    shard: int | None  # likewise, which it computes
    beats: int  # how often its compute thread has moved since it was started
    card: str = ""  # the UUID of its GPU; empty where it has none, or none yet, and in what outlived its process


@dataclass(frozen=True)
class Died:
    """A member's process has ended."""

    member: int  # its id
    why: str  # for the message
    details: str = ""  # all that is known, for the run's folder
    last: Heartbeat | None = None  # its last heartbeat; None where it is not known
    # processes that the kernel's out-of-memory killer has ended here since the launch began; None where that is not known
    oom_kills: int | None = None


@dataclass(frozen=True)
class Stepped:
    """The driver saw the first trace line of this step (after a restart: the first since the restart). clocks: where shards run
    free, how many updates each of them had made at the last sync barrier, as far as that is known."""

    step: int
    clocks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Timed:
    """A worker has told how long a micro-batch has taken it lately, in the median; it tells so again and again."""

    member: int
    seconds: float


@dataclass(frozen=True)
class CheckpointSaved:
    """A checkpoint of this many updates was committed."""

    step: int


@dataclass(frozen=True)
class CheckpointRestored:
    """The generation that begins with a checkpoint loads the one of this many updates, an older one than it was promised if
    later ones are damaged. None: no checkpoint is good, and it begins with the initial state."""

    step: int | None


@dataclass(frozen=True)
class NoRoom:
    """There is no room for the process now where the run may compute, so it was not started. It is tried again later. (If a
    cluster has too few resources, Ray keeps the process waiting, and nothing is told.) taken: GPUs on which the run might
    compute are there, and others have them now."""

    member: int
    why: str
    taken: bool = False


@dataclass(frozen=True)
class Drained:
    """The nodes of these members go away. seconds: until then; None where no time is set."""

    members: tuple[int, ...]
    seconds: float | None


@dataclass(frozen=True)
class StartFailed:
    """The process could not be started or could not prepare, and is gone."""

    member: int
    why: str


@dataclass(frozen=True)
class Interrupt:
    """A signal asks the run to stop. urgent: without waiting for a checkpoint (a second signal)."""

    signal: str
    urgent: bool = False


@dataclass(frozen=True)
class Tick:
    """Time has passed, and all reports up to now have been passed on."""


Event = (
    Ready
    | Reported
    | Failed
    | CardFailed
    | Died
    | Heartbeat
    | Stepped
    | Timed
    | CheckpointSaved
    | CheckpointRestored
    | NoRoom
    | Drained
    | StartFailed
    | Interrupt
    | Tick
)


@dataclass(frozen=True)
class Start:
    """Start a process for this new member and let it prepare."""

    member: int
    role: Role


@dataclass(frozen=True, kw_only=True)
class Begin:
    """Begin a generation: its members by rank, workers (node by node, the oldest first) before servers, all idle.

    With stages, `run_states` are transferred first; then `applies` apply their sums; then `state_transfers` follow.
    """

    generation: int  # its number; it counts the generations of a run
    members: tuple[int, ...]  # ids, by rank
    shards: tuple[tuple[int, ...], ...]  # by worker rank, those it hosts; with stages, of its stage
    nodes: tuple[int, ...]  # by rank, servers too; two that have the same number share memory, others do not
    run_manifest: Mapping[str, Any]  # what the members have agreed on about the run
    # (donor rank, recipient rank), done before the first step; with stages, within a stage
    state_transfers: tuple[tuple[int, int], ...] = ()
    restore: int | None = None  # the rank that first loads the newest checkpoint, and is the donor then; None for none
    without_servers: bool = False  # the topology wants servers and none lives, so another exact topology stands in
    # (donor, recipient, shards): who hands over what these shards keep, after the transfers of state and in this order
    moves: tuple[Move, ...] = ()
    # (lost, heir): what the lost shard keeps is gone with its only holder, and it goes on with what the heir keeps
    fallbacks: tuple[FallbackPair, ...] = ()
    # all such pairs since the replicas were equal last, in order, which the record of a run has to tell
    all_fallbacks: tuple[FallbackPair, ...] = ()
    # all go back to what the donor restores, also those who are farther; without a checkpoint, to the state at the start
    forgets: bool = False
    stages: tuple[int, ...] = ()  # by worker rank, the stage it hosts; empty where every worker has the whole model
    restorers: tuple[int, ...] = ()  # with stages, one rank of each that loads the checkpoint; `restore` is the first
    applies: tuple[int, ...] = ()  # with stages, ranks that apply the sum they hold
    # with stages, (donor rank, recipient rank) of the state of the run, without parameters, also between stages
    run_states: tuple[tuple[int, int], ...] = ()
    # the shards of sites that are away, which sit out: their hosts compute nothing of them
    absent: tuple[int, ...] = ()

    @property
    def workers(self) -> int:
        """So many; they have the first ranks."""
        return len(self.shards)

    @property
    def servers(self) -> int:
        """So many; they have the last ranks."""
        return len(self.members) - len(self.shards)


@dataclass(frozen=True)
class BecomeSpare:
    """This worker has no place now. In a run with stages it lets go of the parameters by which it has proved itself."""

    member: int


@dataclass(frozen=True)
class CallOff:
    """These members are to leave this generation, wherever they are in it, and to report."""

    generation: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class Ask:
    """Have one member request this at the next vote, which is enough for all."""

    member: int
    what: Literal["regroup", "stop", "save"]


@dataclass(frozen=True)
class Inspect:
    """Write down where each of these members stands, before those that are stuck are killed."""

    members: tuple[int, ...]
    stuck: tuple[int, ...]


@dataclass(frozen=True)
class Kill:
    """End this process for certain and at once; for the controller it is gone, and its death is not reported again."""

    member: int
    why: str


@dataclass(frozen=True)
class Retire:
    """End this process, which has no part in the run any more; for the controller it is gone. Nothing is lost with it."""

    member: int


@dataclass(frozen=True)
class Distrust:
    """A check has found this. wrong: the workers that computed wrongly, and are left out; between: those whose answers
    differed; machines: nobody is started any more where the former are."""

    verdict: Verdict
    wrong: tuple[int, ...]
    between: tuple[int, ...]
    machines: bool


@dataclass(frozen=True)
class Recovered:
    """A recovery is complete. seconds: from the detection of a loss (or the readiness of a joiner) to the next
    completed step; why: steps are lost, where that has a cause to be told. driver: it was told by another process."""

    kind: Literal["lost", "joined", "restarted", "driver"]
    seconds: float
    steps_lost: int
    why: str = ""


@dataclass(frozen=True)
class Rebalance:
    """The next generation begins at the next boundary, with shards assigned by speed. micro_batch_s: by member; step_s,
    expected_s: of a step's computing, as it is and as it will be; moving: so many shards."""

    micro_batch_s: Mapping[int, float]
    step_s: float
    expected_s: float
    moving: int


@dataclass(frozen=True)
class Slow:
    """This worker is far slower than the others, and has been for so long. micro_batch_s: of a micro-batch of its; others_s: in
    the median of the others. Told once of each."""

    member: int
    micro_batch_s: float
    others_s: float
    seconds: float


@dataclass(frozen=True)
class End:
    """The run is over; error: None when it finished."""

    error: OrchestratorError | None


Command = (
    Start
    | Begin
    | BecomeSpare
    | CallOff
    | Ask
    | Inspect
    | Kill
    | Retire
    | Distrust
    | Recovered
    | Rebalance
    | Slow
    | End
)
