"""A member's side of a generation: what it is told at the start, what its process provides, and why it leaves.

Generation        who does what, the same for every member
ProcessServices   the member's process as its worker sees it: heartbeat, events, checkpoints
"""

from __future__ import annotations

import pickle
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final, Protocol

from orchestrator.checkpoint.state import TrainingState
from orchestrator.comm.collectives import Exchange, Memory
from orchestrator.comm.pipeline_schedules import Hosts
from orchestrator.comm.topologies.schedule import Schedule
from orchestrator.comm.topologies.voting import vote_schedule
from orchestrator.comm.transports.base import Transport
from orchestrator.common.child import Start, Started
from orchestrator.controller.checking import Verdict
from orchestrator.controller.events import Begin
from orchestrator.controller.rendezvous.schedules import Group
from orchestrator.controller.shard_assignment import hosts_of
from orchestrator.optim.privacy.keys import Keys
from orchestrator.worker.member.heartbeat import Heartbeat
from orchestrator.worker.member.shard_slots import ShardSlots, SlotRow
from orchestrator.worker.member.shared_queue import MemoryHandle

Entry = dict[str, Any]
Emit = Callable[[Entry], None]
Connect = Callable[[], Transport]  # called once the memory that peers will read is allocated

INITIAL: Final = "initial"
_LOOK_S: Final = 0.1  # between two looks at whether the generation still stands, while a checkpoint is awaited


@dataclass(frozen=True)
class Generation:
    """One membership with its assignment of shards, as its members get it. Workers have the first ranks."""

    begin: Begin  # what the controller decided: who takes part, who hosts what, and who gives what to whom
    schedule: Schedule  # who adds up with whom; in stages the groups do, and this is the way of what all gather
    # what `begin.restore` and `begin.restorers` load before anything else; INITIAL: they go back to the state in which the
    # run began; None: nobody loads
    checkpoint: str | None = None
    writers: tuple[int, ...] = ()  # the ranks that write the parts of checkpoints, in order
    storage: str = ""  # where the parts of checkpoints lie
    # of a private run; told to workers only, and to no record; None otherwise
    keys: Keys | None = field(default=None, repr=False)
    groups: tuple[Group, ...] = ()  # by stage, the workers that add up its gradient, and how
    # by worker's rank, the queue from which it claims shards; None for a worker that is alone on its host
    queues: tuple[MemoryHandle | None, ...] = ()
    # by worker's rank, the memory in which it shares a divided update; None for a worker that is alone on its host
    updates: tuple[MemoryHandle | None, ...] = ()
    is_first: bool = False  # of this driver: the run ends if a writer cannot write, as nothing is lost yet

    @classmethod
    def unpacked(cls, content: bytes) -> Generation:
        """The one of which these bytes were made by `packed`, in a process of the same run."""
        found: Generation = pickle.loads(zlib.decompress(content))
        return found

    @property
    def number(self) -> int:
        return self.begin.generation

    @property
    def workers(self) -> int:
        return self.begin.workers

    @property
    def restore(self) -> tuple[int, str] | None:
        """(rank, where): the member that loads a checkpoint before anything else, and the checkpoint; None if nobody does."""
        if self.begin.restore is None or self.checkpoint is None:
            return None
        return self.begin.restore, self.checkpoint

    @cached_property
    def hosts(self) -> Hosts:
        """hosts[stage][shard] = rank, for the programs of `orchestrator.comm.pipeline_schedules`."""
        return hosts_of(self.begin.stages or (0,) * self.workers, self.begin.shards)

    def as_event(self) -> dict[str, Any]:
        """The generation for the journal, as values for JSON."""
        begin = self.begin
        return {
            "number": self.number,
            "topology": self.schedule.topology,
            "workers": self.schedule.workers,
            "servers": self.schedule.servers,
            "nodes": begin.nodes,
            "shards": begin.shards,
            "state_transfers": begin.state_transfers,
            "restore": self.restore,
            "writers": self.writers,
            "storage": self.storage,
            **({"moves": begin.moves} if begin.moves else {}),
            **({"heirs": begin.fallbacks} if begin.fallbacks else {}),
            **({"absent": begin.absent} if begin.absent else {}),
            **({"stages": begin.stages} if begin.stages else {}),
            **({"applies": begin.applies} if begin.applies else {}),
            **({"run_states": begin.run_states} if begin.run_states else {}),
        }

    def donors_of(self, rank: int) -> list[int]:
        return [donor for donor, recipient in self.begin.state_transfers if recipient == rank]

    def recipients_of(self, rank: int) -> list[int]:
        return [recipient for donor, recipient in self.begin.state_transfers if donor == rank]

    @cached_property
    def votes(self) -> Schedule:
        """By which all members vote."""
        return vote_schedule(self.schedule.members, self.begin.nodes)

    def exchange(self, rank: int, transport: Transport, memory: Memory, deadline_s: float) -> Exchange:
        """Among all members."""
        return Exchange(self.schedule, rank, self.number, transport, memory, deadline_s, self.votes)

    def peers_of(self, rank: int) -> frozenset[int]:
        """The ranks that `rank` has to be connected with: those with which it adds up, gathers, votes or changes state, and
        those of the other stages that it exchanges messages with."""
        exchanging = self.schedule.peers_of(rank) | self.votes.peers_of(rank)
        changing = self._changing.get(rank, ())
        return exchanging.union(changing, self._peers_in_stages(rank) if self.begin.stages else ()) - {rank}

    @cached_property
    def _changing(self) -> dict[int, set[int]]:
        """By rank, those with which it changes state."""
        begin = self.begin
        moves = ((donor, recipient) for donor, recipient, _ in begin.moves)
        found = defaultdict[int, set[int]](set)
        for pair in (*begin.state_transfers, *begin.run_states, *moves):
            for rank in pair:
                found[rank].update(pair)
        return dict(found)

    def _peers_in_stages(self, rank: int) -> Iterator[int]:
        """With a model in stages: those of its own stage with which `rank` adds up, and the hosts of its shards in the others,
        which give it activations, gradients and tied parameters. The first rank makes digests of what the first host of each
        stage sends it."""
        stage, hosts = self.begin.stages[rank], self.hosts
        yield from self.groups[stage].peers_of(rank)
        for shard in self.begin.shards[rank]:
            yield from (ranks[shard] for ranks in hosts)
        if rank == 0:
            yield from self._first_hosts
        elif rank == self._first_hosts[stage]:
            yield 0

    @cached_property
    def _first_hosts(self) -> list[int]:
        return [min(ranks) for ranks in self.hosts]

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: what follows from them is found by each member that needs it."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def packed(generation: Generation) -> bytes:
    """The generation as bytes, which the driver sends to each of its members."""
    return zlib.compress(pickle.dumps(generation), 1)


Wanted = Callable[[str], bool]  # whether a tensor of this name is


class Load(Protocol):
    def __call__(self, where: str, /, wanted: Wanted | None = None) -> TrainingState: ...


class Withdrawn(Exception):
    """This member leaves because a shard of another member failed; that member reports the error."""


class Distrusted(Exception):
    """All members leave because somebody has computed wrongly."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(f"step {verdict.step}: a check has found different answers")
        self.verdict = verdict


class CheckpointWriter(Protocol):
    """Writes one member's parts of checkpoints in the background, one at a time."""

    @property
    def busy(self) -> bool: ...

    def begin(self, state: TrainingState, *, step: int, generation: int, part: int, parts: int, since: float) -> None:
        """Copy part `part` of `parts` of this state and write the copy. Its steady tensors may not change before `copied`;
        the others may as soon as this returns. since: `time.monotonic()` when training stopped for this."""

    def reserve(self, state: TrainingState, *, part: int, parts: int) -> None:
        """Take memory in the background for such a part, if its tensors lie on a GPU."""

    def copied(self, timeout_s: float | None = None) -> bool:
        """Wait until what was begun is copied, and have it written from then on; returns whether that came in time."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until what was begun is written, or has failed; returns whether that came in time."""


class NoCheckpointWriter:
    """The writer of a member that never writes checkpoints."""

    busy = False

    def begin(self, state: TrainingState, *, step: int, generation: int, part: int, parts: int, since: float) -> None:  # noqa: ARG002
        raise AssertionError(
            f"this member cannot write part {part} of {parts} of checkpoint {step} (generation {generation})"
        )

    def reserve(self, state: TrainingState, *, part: int, parts: int) -> None:
        pass

    def copied(self, timeout_s: float | None = None) -> bool:  # noqa: ARG002
        return True

    def wait(self, timeout_s: float | None = None) -> bool:  # noqa: ARG002
        return True


def _nothing_to_load(where: str, wanted: Wanted | None = None) -> TrainingState:  # noqa: ARG001
    raise AssertionError(f"this member cannot load {where}")


def _nothing() -> None:
    pass


def _ignore(entry: Entry) -> None:
    pass


def _on_no_card(uuid: str) -> None:
    pass


def _nowhere(shards: int, row: SlotRow) -> ShardSlots | None:  # noqa: ARG001
    return None


@dataclass(frozen=True)
class ProcessServices:
    """The services of a member's process to its worker."""

    # tells the driver that training moves on, and the worker what is requested
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    emit: Emit = _ignore  # takes `{"trace": line}` and events for the driver
    # entries that the driver may not have received; sent with the state when this member gives it to others
    unacknowledged: Callable[[], list[Entry]] = list
    load: Load = _nothing_to_load  # the state in a checkpoint, of it those tensors that are wanted
    writer: CheckpointWriter = field(default_factory=NoCheckpointWriter)  # writes this member's parts of checkpoints
    # slots in which the states of so many shards outlive this process, given one row; None if there are none
    slots: Callable[[int, SlotRow], ShardSlots | None] = _nowhere
    sites: tuple[str, ...] = ()  # the sites whose bytes this member's node holds
    start: Start = Started  # how a process of loaders or of `on_evaluation` begins
    # whether this is the first worker of a driver's: it tells for all, and asks a copy of the model before the first step
    is_first: bool = True
    changes: Callable[[], None] = _nothing  # is told before the state changes, for what a card still copies of it
    # takes this of the turns of its host, and returns what gives it back; or None while another one has it. None: it is alone
    take_turn: Callable[[int], Callable[[], None] | None] | None = None
    # is told the UUID of this member's GPU before anything is computed there; empty where it does not tell
    on_card: Callable[[str], None] = _on_no_card

    def tell_slower(self, why: str) -> None:
        """Report that something on this member's device takes longer than it could, and why."""
        self.emit({"event": "device", "why": why})

    def await_copied(self) -> None:
        """Wait until no checkpoint is being copied: before that the state may not change. Raises CalledOff."""
        self._await(self.writer.copied)
        self.changes()

    def await_written(self) -> None:
        """Wait until no checkpoint is being written. Raises CalledOff."""
        self._await(self.writer.wait)  # no beat: a storage that hangs is no progress

    def tell_times(self, *, at_once: bool = False) -> None:
        """Report where the time went since the last report, if that is long ago. Called from the compute thread."""
        window = self.heartbeat.times.take(at_once=at_once)
        if window is not None:
            self.emit(window)

    def _await(self, done: Callable[[float], bool]) -> None:
        if done(0):
            return
        times = self.heartbeat.times
        times.hold("checkpoint")
        while not done(_LOOK_S):
            self.heartbeat.check()
        times.release()
