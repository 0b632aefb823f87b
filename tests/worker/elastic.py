"""Whole runs in which members die, are called off, stop and join at scripted moments; every member is a thread.

    told = survive(Mlp, Layout(3), [Fault(member=1, at=40, what="die")])      # Told: trace, digest, metrics of the run

A moment is the n-th thing that a member does, counted over its whole life: a beat of its heartbeat or a verb of its
transport. So a loop over n meets every place in the engine, the middle of a recovery and of a state transfer included.

The regrouping here is the simplest that follows the rules (the true one is `controller.controller`). Workers are ordered by
age, those that are behind take the state of one that is farthest ahead, and servers are replaced at once. When no worker is
left, the run goes on from the last complete checkpoint, or afresh. The driver is the worst there can be: it hears nothing
from a member that dies, so whatever the run has told is what its last members can tell.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from orchestrator.checkpoint.state import TrainingState
from orchestrator.comm.topologies import Schedule, build_schedule
from orchestrator.comm.transports.base import Received, Tag, Transport
from orchestrator.config.plan import Variant
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import CheckpointSettings, Every, Settings
from orchestrator.controller.checking import Verdict
from orchestrator.controller.events import Begin, FallbackPair
from orchestrator.controller.membership import fallback_pairs, lost_shards, moves
from orchestrator.controller.shard_assignment import assign_shards, assign_stages
from orchestrator.controller.state import ControllerState
from orchestrator.controller.state import Member as MemberStatus
from orchestrator.controller.state_recovery import Standing, plan_recovery
from orchestrator.errors import Inconsistent
from orchestrator.numerics.byte_layout import same_bits
from orchestrator.pipeline import Pipeline
from orchestrator.records.progress import Activity, Progress, advances_of, latest
from orchestrator.records.trace import Line
from orchestrator.worker.member import lasting_memory
from orchestrator.worker.member.generation import INITIAL
from orchestrator.worker.member.heartbeat import Heartbeat
from orchestrator.worker.member.shard_slots import ShardSlots, SlotRow
from orchestrator.worker.member.shared_queue import MemoryHandle, QueueMemory
from orchestrator.worker.worker import Ended, Generation, ProcessServices, Server, Worker
from tests.comm.transports.memory import LEFT, Hub, LocalRegions
from tests.controller.asked import required
from tests.worker.runs import SECRET, Layout, Shared, in_stages, settings_for

What = Literal["die", "call off", "regroup", "stop", "save", "join"]

MOST_GENERATIONS = 40
# Settings of a run of `pipelines.Batchnorm` that has all that could be lost half-way, and stops early.
EVERYTHING: dict[str, Any] = {
    "steps": 7,
    "shards": 4,
    "batch_size": 8,
    "seed": 8,
    "args": {"rows": 18, "held_out": 4},
    "optimizer": {"name": "adam", "lr": 0.02},
    "clip": 0.5,
    "evaluate_every": Every(steps=1),
    "schedule": {"name": "plateau", "patience": 1, "gamma": 0.5, "warmup": 2},
    "early_stopping": {"patience": 2},
}


@dataclass(frozen=True)
class Sending:
    """The moment before a member sends its n-th message of a phase."""

    phase: int
    nth: int


@dataclass(frozen=True)
class Fault:
    """Before the `at`-th thing that a member does, this happens to it, or is asked of it. Members are numbered in order of
    their start, the first servers behind the first workers. join: a fresh worker is started, and a regroup asked for."""

    member: int
    at: int | Sending
    what: What


@dataclass(frozen=True)
class Told:
    """The records that a run has told in the end. Lists of members are by their numbers."""

    trace: list[Line]
    digest: str | None
    metrics: dict[int, str]
    generations: int  # how many there were
    actions: list[int]  # how many things each member did
    entered: list[list[int]]  # how many each member had done when it entered each generation
    ends: list[list[str]]  # how each generation ended for each member
    stopped: bool
    rests: list[dict[str, Any]] = field(default_factory=list)  # their records, if replicas run free in between
    went_back: int = 0  # how often all went back to a checkpoint
    applied: int = 0  # sums that were applied by members that had missed the end of the second vote


class Dead(BaseException):
    """Not an Exception: nothing may catch it."""


class Saved:
    """The checkpoints of a run: complete when all parts of one (generation, step) are there. heard: with each, what the driver
    has on its disk by then."""

    def __init__(self) -> None:
        self.heard: list[list[dict[str, Any]]] = []
        self.speak: Callable[[], list[dict[str, Any]]] = list
        self.parts: dict[tuple[int, int], dict[int, TrainingState]] = {}
        self.complete: list[tuple[int, TrainingState]] = []  # step and state, in order

    def add(self, state: TrainingState, step: int, generation: int, part: int, parts: int) -> None:
        names = [*sorted(state.tensors.keys() - state.own)[part::parts], *state.own]
        copied = {name: state.tensors[name].clone() for name in names}
        found = self.parts.setdefault((generation, step), {})
        found[part] = TrainingState(dict(state.values), copied)
        if len(found) == parts:
            tensors = {name: tensor for piece in found.values() for name, tensor in piece.tensors.items()}
            self.complete.append((step, TrainingState(found[0].values, tensors)))
            self.heard.append(self.speak())


class Writes:
    """A writer that copies what is steady as late as it may, so a change that comes too early spoils the checkpoint; then it
    is busy for as many looks as a test wants. Implements `worker.member.generation.CheckpointWriter`."""

    def __init__(self, saved: Saved, busy_for: int) -> None:
        self._saved = saved
        self._busy_for = busy_for
        self._left = 0
        self._begun: tuple[TrainingState, tuple[int, int, int, int]] | None = None

    @property
    def busy(self) -> bool:
        busy = self._begun is not None or self._left > 0
        self._left = max(0, self._left - 1)
        return busy

    def begin(self, state: TrainingState, *, step: int, generation: int, part: int, parts: int, since: float) -> None:  # noqa: ARG002
        assert self._begun is None, "a writer that copies was given another part"
        assert self._left == 0, "a writer that works was given another part"
        assert {name for name in state.tensors if name.startswith("optimizer/")} <= state.steady
        tensors = {n: tensor if n in state.steady else tensor.clone() for n, tensor in state.tensors.items()}
        self._begun = (TrainingState(state.values, tensors, own=state.own), (step, generation, part, parts))

    def reserve(self, state: TrainingState, *, part: int, parts: int) -> None:
        pass

    def copied(self, timeout_s: float | None = None) -> bool:
        if self._begun is not None and timeout_s == 0:
            return False
        if self._begun is not None:
            state, about = self._begun
            self._begun = None
            self._saved.add(state, *about)
            self._left = self._busy_for
        return True

    def wait(self, timeout_s: float | None = None) -> bool:
        if not self.copied(timeout_s):
            return False
        self._left = max(0, self._left - 1)
        return self._left == 0


class Counted(Heartbeat):
    """A heartbeat that meets the script at each beat."""

    def __init__(self, meet: Callable[[], None]) -> None:
        super().__init__()
        self._meet = meet

    def beat(self, activity: Activity, step: int | None = None, shard: int | None = None, *, together: int = 0) -> None:
        self._meet()
        super().beat(activity, step, shard, together=together)


class Scripted:
    """A transport that meets the script at each verb but the farewells."""

    def __init__(self, inner: Transport, meet: Callable[[], None], meet_sending: Callable[[int], None]) -> None:
        self._inner = inner
        self._meet = meet
        self._meet_sending = meet_sending
        self.travels, self.close, self.abort = inner.travels, inner.close, inner.abort

    @property
    def sent_bytes(self) -> int:
        return self._inner.sent_bytes

    def send(self, peer: int, tag: Tag, payload: torch.Tensor, note: int = 0, *, done: bool = False) -> None:
        self._meet()
        self._meet_sending(tag.phase)
        self._inner.send(peer, tag, payload, note, done=done)

    def receive(self, peer: int, tag: Tag, timeout_s: float) -> Received:
        return self._inner.receive(peer, tag, timeout_s)  # a beat comes before each

    def poll(self, phases: Collection[int], timeout_s: float) -> list[tuple[int, Tag, Received]]:
        self._meet()
        return self._inner.poll(phases, timeout_s)

    def flush(self, timeout_s: float) -> None:
        self._inner.flush(timeout_s)


class MetSlots(ShardSlots):
    """Slots whose writer meets the script before, within and after each write."""

    def __init__(self, fd: int, shards: int, row: SlotRow, meet: Callable[[], None]) -> None:
        super().__init__(fd, shards, row)
        self._meet = meet

    def write(self, shard: int, stamp: int, row: SlotRow) -> None:
        self._meet()
        super().write(shard, stamp, _Met(row, self._meet))
        self._meet()


class _Met(dict[str, torch.Tensor]):
    """A row that meets the script when its last tensor is read."""

    def __init__(self, row: SlotRow, meet: Callable[[], None]) -> None:
        super().__init__(row)
        self._meet, self._last = meet, list(row)[-1]

    def __getitem__(self, name: str) -> torch.Tensor:
        if name == self._last:
            self._meet()
        return super().__getitem__(name)


class Member:
    """One member's life: the object, what it has said, and how it stands."""

    def __init__(self, run: Elastic, number: int, role: type[Worker] | type[Server]) -> None:
        self.number = number
        self.is_worker = role is Worker
        self.said: list[dict[str, Any]] = []
        self.actions = 0
        self.entered: list[int] = []
        self.heartbeat = Counted(self.meet)
        self.generation = -1
        self.rank = -1
        self.hub: Hub | None = None
        self.ends: list[str] = []
        self.stage: int | None = None
        self._sent: Counter[int] = Counter()
        self._run = run
        self.regions = LocalRegions()
        writes = Writes(run.saved, run.busy_for)
        host = ProcessServices(
            self.heartbeat, self.said.append, lambda: list(self.said), run.load, writes, slots=self._slots
        )
        self.member = role(run.plan, self.regions, host)
        self.ended: Ended | None = None
        self._counting = False
        self.run_manifest = self.member.prepare()
        self._counting = True

    def _slots(self, shards: int, row: SlotRow) -> ShardSlots | None:
        return None if self._run.lasting is None else MetSlots(self._run.lasting, shards, row, self.meet)

    def state(self) -> dict[str, torch.Tensor]:
        assert isinstance(self.member, Worker)
        return self.member.state()

    def stand_by(self) -> None:
        assert isinstance(self.member, Worker)
        self.member.become_spare()

    @property
    def progress(self) -> Progress | None:
        return self.member.progress

    def meet(self) -> None:
        if not self._counting:
            return
        number, self.actions = self.actions, self.actions + 1
        for what in self._run.script.pop((self.number, number), ()):
            self._suffer(what)

    def meet_sending(self, phase: int) -> None:
        number = self._sent[phase]
        self._sent[phase] += 1
        for what in self._run.script.pop((self.number, Sending(phase, number)), ()):
            self._suffer(what)

    def live(self, generation: Generation, rank: int, hub: Hub) -> Ended | Dead:
        self.generation, self.rank, self.hub = generation.number, rank, hub
        self.entered.append(self.actions)

        def connect() -> Transport:
            self.meet()
            return Scripted(hub.transport(rank, self.regions), self.meet, self.meet_sending)

        try:
            return self.member.run(generation, rank, connect)
        except Dead as dead:
            return dead
        finally:
            hub.end(rank, LEFT)  # who left before it connected; the controller would call the others off

    def _suffer(self, what: What) -> None:
        if what == "die":
            assert self.hub is not None
            self.hub.kill(self.rank)
            raise Dead(self.number)
        if what == "call off":
            self.heartbeat.call_off(self.generation)
        elif what == "join":
            self._run.joining += 1
            self.heartbeat.ask("regroup", self.generation)
        else:
            self.heartbeat.ask(what, self.generation)


class Elastic:
    """One run, from its first generation to its end. The run manifests of all workers have to agree."""

    def __init__(
        self,
        settings: Settings,
        layout: Layout,
        faults: Sequence[Fault] = (),
        *,
        saved: Saved | None = None,
        busy_for: int = 0,
        keeps_width: bool = False,
        contribution: Variant | None = None,
        replay: Sequence[Mapping[str, Any]] = (),
        outlives: bool = False,
    ) -> None:
        """busy_for: at how many looks a writer is busy with a part. keeps_width: the lost are replaced before it goes on.
        contribution: what shards make of their gradients; with one, they keep state. replay: records of rests that are
        repeated. outlives: what shards keep lies in memory that outlives its member, as on the driver's machine."""
        self.settings = settings
        plan = resolve(settings)
        self.plan = replace(plan, update=replace(plan.update, contribution=contribution), replay=tuple(replay))
        self.went_back = 0
        self.lost_steps = 0  # computed again, by who goes back while somebody lives who had done them
        self.lasting = lasting_memory.created() if outlives else None
        self._shared = Shared()
        self._ground = (
            QueueMemory()
        )  # a moment of a script is the same in each run only where nobody claims; who wants that says so
        self.applied = 0
        self.script: dict[tuple[int, int | Sending], list[What]] = {}
        for fault in faults:
            self.script.setdefault((fault.member, fault.at), []).append(fault.what)
        self.saved = saved or Saved()
        self.saved.speak = lambda: [entry for member in self.everybody for entry in list(member.said)]
        self.inherited: list[tuple[int, FallbackPair]] = []
        self.busy_for = busy_for
        self.joining = 0
        self.verdicts: list[Verdict] = []
        self._keeps_width = keeps_width
        self._layout = layout
        self._numbers = itertools.count()
        self._servers = build_schedule(layout.topology, 1, **settings.topology.options).servers
        self.everybody: list[Member] = []
        self.members = [self._start(Worker) for _ in range(layout.workers)]
        self.run_manifest = self.members[0].run_manifest
        self.generations = 0

    def run(self) -> Told:
        ends: dict[int, Ended] = {}
        while self.generations < MOST_GENERATIONS:
            generation = self._regroup()
            ends = self._live(generation)
            workers = [end for member, end in zip(self.members, ends.values(), strict=True) if member.is_worker]
            for kind in ("finished", "stop"):
                if workers and all(end.kind == kind for end in workers):
                    return self._told(workers)
        raise AssertionError(
            f"no end after {MOST_GENERATIONS} generations: {[member.ends for member in self.everybody]}"
        )

    def load(self, where: str, wanted: Callable[[str], bool] | None = None) -> TrainingState:
        state = self.saved.complete[int(where)][1]
        return replace(state, tensors={n: t for n, t in state.tensors.items() if wanted is None or wanted(n)})

    def _updates(self, nodes: Sequence[int]) -> tuple[MemoryHandle | None, ...]:
        """The memory in which workers divide the update: another one now and then, as when the worker is gone whose memory it
        was."""
        if not self.plan.update.sharded:
            return ()
        if self.generations % 3 == 2:
            self._shared = Shared()
        return self._shared.places(nodes)

    def _start(self, role: type[Worker] | type[Server]) -> Member:
        member = Member(self, next(self._numbers), role)
        self.everybody.append(member)
        return member

    def _regroup(self) -> Generation:
        workers = [member for member in self.members if member.is_worker]
        servers = [member for member in self.members if not member.is_worker]
        fresh = [self._start(Worker) for _ in range(self._wanted(len(workers)))]
        self.joining = 0
        assert all(member.run_manifest == self.run_manifest for member in fresh)
        if self.generations and self._layout.stages > 1:
            for member in fresh:
                member.stand_by()
        workers += fresh
        servers += [self._start(Server) for _ in range(self._servers - len(servers))]
        self.members = [*workers, *servers]
        if self._layout.stages > 1:
            return self._regroup_in_stages(workers)
        best = latest(member.progress for member in workers)
        donor, restore = None, None  # all begin with the initial state
        state, seen = self._as_the_controller_sees(workers)
        forgets = bool(lost_shards(state, seen)) and not fallback_pairs(state, seen)
        if best is not None and forgets:
            self.went_back += 1
            self.lost_steps += best.steps - (self.saved.complete[-1][0] if self.saved.complete else 0)
            donor, restore = 0, (0, str(len(self.saved.complete) - 1) if self.saved.complete else INITIAL)
        elif best is not None:
            donor = [member.progress for member in workers].index(best)
        elif self.saved.complete:
            donor, restore = 0, (0, str(len(self.saved.complete) - 1))
        if not self.plan.lockstep and restore is not None and restore[1] != INITIAL:
            workers[0].said[:] = self.saved.heard[int(restore[1])]
        base = advances_of(best)
        heirs = () if restore is not None else fallback_pairs(state, seen)
        self.inherited = [] if restore is not None else [each for each in self.inherited if each[0] <= base]
        self.inherited += [(base, pair) for pair in heirs]
        behind = [
            (donor, rank)
            for rank, member in enumerate(self.members)
            if donor is not None
            and rank != donor
            and (not member.is_worker or member.progress != best or restore is not None)
        ]
        shards = assign_shards(self.settings.data.shards, len(workers))
        nodes = self._layout.nodes_of(len(self.members))
        begin = Begin(
            generation=self.generations,
            members=tuple(range(len(self.members))),
            shards=shards,
            nodes=nodes,
            run_manifest=self.run_manifest,
            state_transfers=tuple(behind),
            restore=None if restore is None else restore[0],
            moves=moves(state, seen, shards, None if restore is None else restore[0]),
            fallbacks=heirs,
            all_fallbacks=tuple(pair for each, pair in self.inherited if each == base),
        )
        generation = Generation(
            begin,
            self._schedule(workers),
            None if restore is None else restore[1],
            tuple(range(0, len(workers), 1 if self.keeps_shard_state else 2)),
            keys=SECRET.keys("tests"),
            queues=(MemoryHandle(0, *self._ground.handle),) * len(workers) if self.settings.cluster.claims else (),
            updates=self._updates(nodes[: len(workers)]),
        )
        self.generations += 1
        return generation

    def _schedule(self, workers: list[Member]) -> Schedule:
        nodes = self._layout.nodes_of(len(self.members))
        return build_schedule(self._layout.topology, len(workers), nodes=nodes, **self.settings.topology.options)

    def _regroup_in_stages(self, workers: list[Member]) -> Generation:
        """As control.membership does: all go back to the last checkpoint where a stage has lost its last worker."""
        for member, stage in zip(
            workers, assign_stages([member.stage for member in workers], self._layout.stages), strict=True
        ):
            member.stage = stage
        stage_of = tuple(member.stage for member in workers if member.stage is not None)
        first = in_stages(self._schedule(workers), self.plan, stage_of, self._layout.nodes_of(len(workers)))
        standings = [
            Standing(stage, member.progress, member.ended is not None and member.ended.holds_sum)
            for stage, member in zip(stage_of, workers, strict=True)
        ]
        planned = plan_recovery(standings, self._layout.stages)
        begin = replace(
            first.begin,
            generation=self.generations,
            run_manifest=self.run_manifest,
            state_transfers=planned.transfers,
            run_states=planned.run_states,
            applies=planned.applies,
        )
        generation = replace(first, begin=begin, writers=tuple(range(len(workers))))
        self.applied += len(planned.applies)
        resumes = self.generations == 0 and bool(self.saved.complete)
        self.went_back += bool(planned.lost)
        if planned.lost or resumes:
            where = str(len(self.saved.complete) - 1) if self.saved.complete else INITIAL
            restorers = tuple(stage_of.index(stage) for stage in range(self._layout.stages))
            if planned.lost and where != INITIAL:
                for rank in restorers:  # the driver has heard what came before a checkpoint when it is complete
                    workers[rank].said[:0] = self.saved.heard[int(where)]
            behind = tuple((restorers[stage], rank) for rank, stage in enumerate(stage_of) if rank not in restorers)
            begin = replace(
                begin,
                restore=restorers[0],
                restorers=restorers,
                state_transfers=behind,
                run_states=(),
                applies=(),
            )
            generation = replace(generation, begin=begin, checkpoint=where)
        self.generations += 1
        return generation

    @property
    def keeps_shard_state(self) -> bool:
        return bool(self.run_manifest["shard_state"])

    def _as_the_controller_sees(self, workers: list[Member]) -> tuple[ControllerState, list[MemberStatus]]:
        shards = self.settings.data.shards
        requirements = required(
            shards=shards,
            start=1,
            least=1,
            most=shards,
            falls_back=not self.plan.lockstep and not self.plan.replay,
        )
        seen = [
            MemberStatus(
                id=member.number,
                role="worker",
                asked=0,
                progress=member.progress,
                held=() if member.ended is None else member.ended.held,
                staged=() if member.ended is None else member.ended.staged,
            )
            for member in workers
        ]
        return ControllerState(requirements=requirements, started=0, run_manifest=self.run_manifest), seen

    def _wanted(self, workers: int) -> int:
        if self._layout.stages > 1 and not self._keeps_width:
            living = [member.stage for member in self.members]
            empty = self._layout.stages - len(set(living)) if self.generations else 0
            return empty + min(self.joining, self.settings.data.shards * self._layout.stages - workers - empty)
        if workers == 0 or self._keeps_width:
            return self._layout.workers - workers + self.joining
        return min(self.settings.data.shards - workers, self.joining)

    def _live(self, generation: Generation) -> dict[int, Ended]:
        """How it ended for each survivor, who are the members from now on."""
        ranks = range(len(self.members))
        hub = Hub(len(ranks), {(rank, peer) for rank in ranks for peer in generation.peers_of(rank)})
        with ThreadPoolExecutor(len(self.members)) as pool:
            futures = [pool.submit(m.live, generation, rank, hub) for rank, m in enumerate(self.members)]
            ends = [future.result() for future in futures]
        died = {rank for rank, end in enumerate(ends) if isinstance(end, Dead)}
        survivors = {}
        for rank, (member, end) in enumerate(zip(list(self.members), ends, strict=True)):
            member.ends.append("dead" if isinstance(end, Dead) else end.kind)
            if isinstance(end, Dead):
                member.member.close()
                self.members.remove(member)
            else:
                assert end.accuses is None or end.accuses in died, (rank, end)
                member.ended = end
                survivors[rank] = end
        self._put_out(survivors)
        steps = [
            advances_of(end.progress)
            for member, end in zip(self.members, survivors.values(), strict=True)
            if end.progress
        ]
        assert not steps or generation.begin.state_transfers or max(steps) - min(steps) <= 1
        return survivors

    def _put_out(self, survivors: dict[int, Ended]) -> None:
        """As control.rendezvous.distrust does: who computed wrongly takes no part any more."""
        verdicts = {end.verdict for end in survivors.values() if end.verdict is not None}
        if not verdicts:
            return
        (verdict,) = verdicts
        self.verdicts.append(verdict)
        if verdict.shard is not None and not verdict.wrong:
            raise Inconsistent("it cannot be told who is wrong", code="check.nobody-named")
        wrong = [member for member, rank in zip(self.members, survivors, strict=True) if rank in verdict.wrong]
        for member in wrong:
            member.member.close()
            self.members.remove(member)
        for rank in verdict.wrong:
            del survivors[rank]

    def _require_one_state(self) -> None:
        """A digest is of parameters alone. A state of the optimizer shows when a checkpoint, or a worker that joins, has it."""
        first, *others = (
            member.member._strategy.model_state.capture({}).tensors
            for member in self.members
            if isinstance(member.member, Worker)
        )
        for other in others:
            assert other.keys() == first.keys()
            assert [name for name in first if not same_bits(first[name], other[name])] == []

    def _told(self, workers: list[Ended]) -> Told:
        assert len({(end.digest, end.progress) for end in workers}) == 1
        words = _words if self.plan.lockstep else _latest_words
        told = [words(member.said) for member in self.members if member.is_worker]
        assert all(each == told[0] for each in told)
        lines, metrics, rests = told[0]
        if self.plan.lockstep and self._layout.stages == 1:
            self._require_one_state()
        for member in self.everybody:
            member.member.close()
            member.regions.close()
        if self.lasting is not None:
            os.close(self.lasting)
        return Told(
            [lines[step] for step in sorted(lines)],
            workers[0].digest,
            metrics,
            self.generations,
            [member.actions for member in self.everybody],
            [member.entered for member in self.everybody],
            [member.ends for member in self.everybody],
            workers[0].kind == "stop",
            rests,
            self.went_back,
            self.applied,
        )


Words = tuple[dict[int, Line], dict[int, str], list[dict[str, Any]]]


def _words(said: list[dict[str, Any]]) -> Words:
    """The lines and metrics by step; whatever was said twice was the same."""
    lines: dict[int, Line] = {}
    metrics: dict[int, str] = {}
    for entry in said:
        if "trace" in entry:
            line = entry["trace"]
            assert lines.setdefault(line["step"], line) == line
        elif entry["event"] == "evaluated":
            text = str(entry["metrics"])  # NaN is not equal to itself
            assert metrics.setdefault(entry["step"], text) == text
    return lines, metrics, []


def _latest_words(said: list[dict[str, Any]]) -> Words:
    """The same where replicas run free: of a rest that was done again the last time counts, with lines and metrics that were
    told with it, and nothing that came after an earlier time."""
    found: dict[int, tuple[int, dict[str, Any]]] = {}
    for entry in said:
        if "rest" in entry:
            rest, generation = entry["rest"], entry["generation"]
            known = found.setdefault(rest["rest"], (generation, rest))
            assert known[0] != generation or known[1] == rest
            found[rest["rest"]] = max(known, (generation, rest), key=lambda each: each[0])
    lines: dict[int, Line] = {}
    metrics: dict[int, str] = {}
    rests: list[dict[str, Any]] = []
    latest_one, steps = 0, 0
    for number, (generation, rest) in sorted(found.items()):
        if generation < latest_one:
            break
        assert number == len(rests), "a rest was never told"
        for entry in said:
            if entry.get("generation") != generation:
                continue
            if "trace" in entry and steps <= entry["trace"]["step"] < rest["steps"]:
                assert lines.setdefault(entry["trace"]["step"], entry["trace"]) == entry["trace"]
            elif entry.get("event") == "evaluated" and entry["step"] == rest["steps"] - 1:
                text = str(entry["metrics"])
                assert metrics.setdefault(entry["step"], text) == text
        rests.append(rest)
        latest_one, steps = generation, rest["steps"]
    assert list(lines) == list(range(steps)), "a line was never told"
    return lines, metrics, rests


def drawn(
    draw: random.Random, *, least: int = 1, deaths: int = 1, faults: int = 12, within: int = 120
) -> tuple[Layout, list[Fault], int]:
    """A layout of `least` workers or more, so many faults at any of the first moments, and for how long writers are busy.
    deaths: how many times as likely one is as a call-off."""
    topology = draw.choice(["ring", "tree", "parameter_server", "peer_to_peer", "hierarchical"])
    nodes = 2 if topology == "hierarchical" else 1
    workers = draw.randint(least, 4)
    servers = draw.choice([1, 2]) if topology == "parameter_server" else None
    others: list[What] = ["join", "join", "call off", "regroup", "save"]
    kinds: list[What] = ["die"] * deaths
    kinds += others
    found = [Fault(draw.randrange(7), draw.randrange(within), draw.choice(kinds)) for _ in range(faults)]
    return Layout(workers, topology, servers=servers, nodes=nodes), found, draw.choice([0, 0, 3])


def elastic_settings(
    pipeline: type[Pipeline], layout: Layout, checkpoint_every: int | None = None, **settings: Any
) -> Settings:
    every = None if checkpoint_every is None else Every(steps=checkpoint_every)
    plain = settings_for(pipeline, layout, **settings)
    return replace(plain, checkpoint=CheckpointSettings(every=every))


def survive(
    pipeline: type[Pipeline],
    layout: Layout,
    faults: Sequence[Fault] = (),
    checkpoint_every: int | None = None,
    contribution: Variant | None = None,
    **settings: Any,
) -> Told:
    """The run under these faults, after checking that its last members tell the same."""
    prepared = elastic_settings(pipeline, layout, checkpoint_every, **settings)
    return Elastic(prepared, layout, faults, contribution=contribution).run()


PARAMETER_SERVER = Layout(2, "parameter_server")


def stop_and_go_on(
    pipeline: type[Pipeline], at: int, other: Layout = PARAMETER_SERVER, **settings: Any
) -> tuple[Told, Told]:
    """A run of three workers, one of which asks for a stop at this moment, and what goes on with it on another layout."""
    saved = Saved()
    prepared = elastic_settings(pipeline, Layout(3), **settings)
    before = Elastic(prepared, Layout(3), [Fault(1, at, "stop")], saved=saved).run()
    assert before.stopped
    assert saved.complete[-1][0] == len(before.trace)
    return before, Elastic(elastic_settings(pipeline, other, **settings), other, saved=saved).run()
