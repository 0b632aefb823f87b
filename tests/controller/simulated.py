"""A small world for the controller: members that follow the protocol, a driver between them and `decide`, and a clock that
only moves when it is told to. The test that drives it decides what happens next and in which order; every command is checked
where it is given.

A generation works through barriers: a step needs a contribution of every member, an evaluation too. When all have
contributed, each commits by itself, so that one may be a step behind when something happens. A member may leave when it meets
one that is dead or leaving; in a deaf world none does (a host that vanished says nothing), and only the controller can end a
broken generation. In a near world all members live on the driver's machine, where it is certain what a dead one was doing.
With races every farewell is missed, so that members accuse the living. A poisonous micro-batch kills whoever computes it. In
a pair that is cut, nothing reaches the first member from the second.

If shards keep state, a worker stages that of its shards with its contribution and has it once it commits. Until then it keeps
what it has, whoever is to host it. Nobody contributes without the state of the shards that it hosts. A state is named by the
advance and the shard that it was made in. If replicas run free, an advance is a rest, which may complete any number of steps,
and a lost shard goes on with another one's state: `Begin.all_fallbacks` tells what the shards of a generation have.

If the model is cut into stages, there is more to a step. Each member gets the sum of its stage, or notices first that one is
gone, and commits when all have theirs. Without a second vote it commits as soon as it has its own. Nobody contributes without
its stage's parameters as of its progress.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby

from orchestrator.common import card_faults
from orchestrator.controller import controller
from orchestrator.controller.events import (
    Ask,
    BecomeSpare,
    Begin,
    CallOff,
    CardFailed,
    CheckpointSaved,
    Command,
    Died,
    Drained,
    End,
    Event,
    Heartbeat,
    Inspect,
    Kill,
    NoRoom,
    Ready,
    Rebalance,
    Recovered,
    Reported,
    Retire,
    Role,
    Slow,
    Start,
    Stepped,
    Tick,
)
from orchestrator.controller.state import Requirements
from orchestrator.records.progress import Progress, advances_of, behind, latest, passed, reached, steps_of
from tests.controller.reports import finishes, leaves

START = Progress(0)
AT_REST = (0, 0, 1, 2, 2, 4, 4, 5, 7, 8, 9)  # the steps that are done after so many rests

Rows = dict[int, tuple[int, int]]


@dataclass
class Process:
    """A member as it really is. news: what it has said and the driver has not heard yet, in order. held, staged: the shards
    whose state it has as of its progress, and as of the step after it; to_receive: whose it still has to get, and from whom;
    to_inherit: lost ones have still to get their heirs'. learned: as of which step it has its stage's parameters; summed: it
    holds the sum of that one; to_apply: it is to apply that once it is told; told_by: who is to give it the run's state."""

    id: int
    role: Role
    state: str = "starting"  # starting, idle, running, dead
    stopped: bool = False
    progress: Progress | None = None
    begin: Begin | None = None
    peers: list[Process] = field(default_factory=list)  # of its generation, itself too, by rank
    contributed: bool = False
    to_take: bool = False
    to_give: set[int] = field(default_factory=set)
    to_restore: bool = False
    held: Rows = field(default_factory=dict)
    staged: Rows = field(default_factory=dict)
    to_inherit: bool = False
    stage: int | None = None
    learned: int | None = None
    summed: bool = False
    to_apply: bool = False
    told_by: int | None = None
    to_receive: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    request: int = 0

    @property
    def node(self) -> int:
        return self.id % 3

    voted: int = 0
    halt: int = 0
    called_off: bool = False
    finished: bool = False
    beats: int = 0
    news: list[Event] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        return self.state != "dead"

    @property
    def acts(self) -> bool:
        return self.state == "running" and not self.stopped


class World:
    """One run with its processes. Asserts about commands raise AssertionError where the command is given."""

    def __init__(
        self,
        requirements: Requirements,
        *,
        steps: int = 9,
        evaluate_every: int = 3,
        deaf: bool = False,
        near: bool = False,
        races: bool = False,
        shard_state: bool = False,
        second_vote: bool = True,
        poison: tuple[int, int] | None = None,
        cut: tuple[int, int] | None = None,
    ) -> None:
        self.requirements, self.steps, self.evaluate_every, self.deaf = requirements, steps, evaluate_every, deaf
        self.near, self.races, self.poison, self.cut = near, races, poison, cut
        self.shard_state = shard_state
        self.free = requirements.falls_back
        self.staged, self.second_vote = requirements.members.stages > 1, second_vote
        self.saved = {requirements.checkpoint: AT_REST.index(requirements.checkpoint or 0)}  # rests, by steps
        self.run_manifest = {"steps": steps, "shard_state": shard_state}
        self.now = 0.0
        self.processes: dict[int, Process] = {}
        self.known_dead: set[int] = set()
        self.draining: set[int] = set()
        self.cards = 0  # of the workers, in turn; 0: they have none
        self.retired: set[int] = set()
        self.begins: list[Begin] = []
        self.recovered: list[Recovered] = []
        self.end: End | None = None
        self.checkpoint = requirements.checkpoint
        self.seen: set[int] = set()
        self._told: list[tuple[float, Event, str, str]] = []
        self.state, commands = controller.initial(requirements, self.now)
        self._execute(commands)

    # ---- the driver

    def tell(self, event: Event) -> None:
        before = self.state
        self.state, commands, reason = controller.decide(self.state, event, self.now)
        self._told.append((self.now, event, self.state.phase, reason))
        if isinstance(event, (Died, NoRoom)):
            self.known_dead.add(event.member)
        assert before.phase != "ended" or not commands
        self._execute(commands)

    @property
    def story(self) -> str:
        """The last events that the controller was told, and what it made of them."""
        return "\n".join(f"{now:7.2f} {event} -> {phase}: {reason}" for now, event, phase, reason in self._told[-60:])

    @property
    def reasons(self) -> str:
        """The reasons of all decisions of the controller."""
        return "\n".join(reason for *_, reason in self._told if reason)

    def deliver(self, process: Process) -> None:
        event = process.news.pop(0)
        if isinstance(event, Stepped):
            if event.step in self.seen:
                return
            self.seen.add(event.step)
        self.tell(event)
        if self.near and isinstance(event, Reported) and event.ended.kind == "peer":
            self._look_for_dead()

    def _look_for_dead(self) -> None:
        """As the driver does when somebody has lost a peer."""
        for process in (self.processes[member] for member in self.begins[-1].members):
            for event in process.news[-1:]:
                if isinstance(event, Died) and process.id not in self.known_dead:
                    process.news.clear()
                    self.tell(event)

    def save(self) -> None:
        """The driver commits a checkpoint of where the furthest living worker is."""
        farthest = latest(process.progress for process in self.living("worker"))
        if self.shard_state or self.staged:
            farthest = self._where_all_are()
        if farthest is not None and self.end is None and not (self.free and farthest.steps <= (self.checkpoint or 0)):
            self.checkpoint = farthest.steps
            self.saved[self.checkpoint] = farthest.barriers or 0
            self.tell(CheckpointSaved(self.checkpoint))

    def _where_all_are(self) -> Progress | None:
        """A checkpoint needs what every worker has: where the last of the generation is, if they all live and have begun."""
        begin = self.begins[-1] if self.begins else None
        here = [] if begin is None else [self.processes[member] for member in begin.members[: begin.workers]]
        if not here or any(not p.alive or p.progress is None or self._busy_before(p) for p in here):
            return None
        all_are = [self._at(process) for process in here]
        least = next(one for one in all_are if all(reached(other, one) for other in all_are))
        return least if least.steps >= (self.checkpoint or 0) else None

    def tick(self, seconds: float) -> None:
        self.now += seconds
        for process in list(self.processes.values()):
            if process.state in ("idle", "running") and not process.stopped:
                process.beats += 1
                self.tell(self.heartbeat(process))
        self.tell(Tick())

    def heartbeat(self, process: Process) -> Heartbeat:
        """The heartbeat of this living member."""
        begin, step = process.begin, steps_of(process.progress)
        if process.state == "idle" or begin is None:
            return Heartbeat(process.id, "idle", None, None, process.beats)
        if self._busy_before(process):
            return Heartbeat(process.id, "state_transfer", step, None, process.beats)
        rank = begin.members.index(process.id)
        if process.contributed or rank >= begin.workers:
            return Heartbeat(process.id, "exchange", step, None, process.beats)
        shard = self._poisonous(process)
        return Heartbeat(process.id, "compute", step, begin.shards[rank][0] if shard is None else shard, process.beats)

    def _misses(self, process: Process) -> int | None:
        """The rank of the peer of which nothing reaches this member."""
        members = () if process.begin is None else process.begin.members
        if self.cut is None or process.id != self.cut[0] or self.cut[1] not in members:
            return None
        return members.index(self.cut[1])

    def _poisonous(self, process: Process) -> int | None:
        """The shard in which this member meets its end if it computes its contribution now."""
        begin, step = process.begin, steps_of(process.progress)
        if begin is None or self.poison is None or self._evaluation_is_due(process) or step != self.poison[0]:
            return None
        rank = begin.members.index(process.id)
        return self.poison[1] if rank < begin.workers and self.poison[1] in begin.shards[rank] else None

    def _execute(self, commands: tuple[Command, ...]) -> None:
        for command in commands:
            assert self.end is None, f"{command} after the end"
            if isinstance(command, Start):
                assert command.member not in self.processes
                assert all(command.member > other for other in self.processes)
                self.processes[command.member] = Process(command.member, command.role)
            elif isinstance(command, Begin):
                self._begin(command)
            elif isinstance(command, BecomeSpare):
                spare = self.processes[command.member]
                assert self.staged
                assert spare.stage is None
                assert command.member not in self.begins[-1].members
            elif isinstance(command, CallOff):
                self._call_off(command)
            elif isinstance(command, Ask):
                assert command.member not in self.known_dead
                request = {"regroup": 1, "stop": 2, "save": 0}[command.what]
                asked = self.processes[command.member]
                asked.request = max(asked.request, request)
            elif isinstance(command, Kill):
                assert command.member not in self.known_dead
                assert not self.races or "lost contact" not in command.why, "no connection was broken"
                self.kill(self.processes[command.member], heard=False)
                self.known_dead.add(command.member)
            elif isinstance(command, Retire):
                self._retire(self.processes[command.member])
            elif isinstance(command, Recovered):
                assert command.seconds >= 0
                self.recovered.append(command)
            elif isinstance(command, Inspect):
                assert not {*command.members} & self.known_dead
                assert {*command.stuck} <= {*command.members}
            elif isinstance(command, Rebalance | Slow):
                assert command.micro_batch_s
            elif isinstance(command, End):
                self._end(command)
            else:
                raise AssertionError(f"nobody checks anybody here: {command}")

    def _retire(self, process: Process) -> None:
        """Only who is told to leave, and has no part in the run any more."""
        assert process.id in self.draining - self.known_dead
        assert process.id not in self.begins[-1].members
        assert process.state in ("starting", "idle", "dead")
        self.kill(process, heard=False)
        self.known_dead.add(process.id)
        self.retired.add(process.id)

    def _begin(self, begin: Begin) -> None:
        assert begin.generation == (self.begins[-1].generation + 1 if self.begins else self.requirements.generation)
        assert not set(begin.members) & self.known_dead
        workers, servers = begin.members[: begin.workers], begin.members[begin.workers :]
        assert len(servers) == begin.servers
        assert all(self.processes[member].role == "worker" for member in workers)
        assert all(self.processes[member].role == "server" for member in servers)
        self._check_nodes(begin)
        leaving = len(self.draining) if self.staged else 0  # who give their stage to others stay beside them
        assert begin.workers <= min(
            self.requirements.members.most + leaving, self.requirements.shards * self.requirements.members.stages
        )
        assert begin.workers >= self.requirements.members.least or self.state.interrupted is not None
        for hosted in self._by_stage(begin):
            assert sorted(shard for shards in hosted for shard in shards) == list(range(self.requirements.shards))
        assert len(begin.shards) == begin.workers
        assert all(begin.shards)
        assert begin.without_servers == (self.requirements.members.servers > 0 and not servers)
        assert not [process for process in self.processes.values() if process.state == "running"]
        if self.staged:
            self._check_stages(begin)
        else:
            self._check_donors(begin)
        self.begins.append(begin)
        self.base = advances_of(latest(self.processes[member].progress for member in workers))
        assert not begin.all_fallbacks or begin.restore is None
        if begin.restore is not None:
            self.seen = {step for step in self.seen if step < (self.checkpoint or 0)}
        elif all(self.processes[member].progress is None for member in workers):
            self.seen = set()
        for rank, member in enumerate(begin.members):
            self._enter(self.processes[member], rank, begin)

    def _check_nodes(self, begin: Begin) -> None:
        """Workers of a node have ranks one after the other, by age; so have nodes, by their oldest."""
        assert begin.nodes == tuple(self.processes[member].node for member in begin.members)
        nodes = [
            list(group)
            for _, group in groupby(begin.members[: begin.workers], key=lambda member: self.processes[member].node)
        ]
        assert len(nodes) == len(set(begin.nodes[: begin.workers]))
        assert all(members == sorted(members) for members in nodes)
        assert nodes == sorted(nodes)

    def _by_stage(self, begin: Begin) -> list[list[tuple[int, ...]]]:
        """The shards of the workers of each stage."""
        stages = begin.stages or (0,) * begin.workers
        assert len(stages) == begin.workers
        hosted: list[list[tuple[int, ...]]] = [[] for _ in range(self.requirements.members.stages)]
        for stage, shards in zip(stages, begin.shards, strict=True):
            hosted[stage].append(shards)
        return hosted

    def _check_stages(self, begin: Begin) -> None:
        """A stage is fixed. With a second vote nobody goes back while every stage has a living host, unless all are on their
        way back. A giver has what it gives, and all get to where the farthest is."""
        here = [self.processes[member] for member in begin.members]
        assert all(process.stage in (None, stage) for process, stage in zip(here, begin.stages, strict=True))
        known = [process for process in self.processes.values() if process.id not in self.known_dead]
        highest = latest(process.progress for process in known)
        top = steps_of(highest)
        if begin.forgets:
            lost = [
                stage for stage in range(self.requirements.members.stages) if not self._is_hosted(known, stage, top)
            ]
            assert lost or self._goes_back(known), "all go back though every stage has a living host"
        if begin.restore is not None:
            assert begin.forgets or highest is None or top < (self.checkpoint or 0)
            assert begin.restorers[0] == begin.restore
            assert [begin.stages[rank] for rank in begin.restorers] == list(range(self.requirements.members.stages))
            assert not begin.applies
            assert not begin.run_states
        else:
            assert highest is None or top >= (self.checkpoint or 0)
        whole = {rank for rank, process in enumerate(here) if process.progress == highest}
        whole = set(begin.restorers) if begin.restore is not None else whole
        learned = {rank: 0 if top == 0 else process.learned for rank, process in enumerate(here)}
        for rank in begin.applies:
            assert here[rank].summed
            assert rank in [recipient for _, recipient in begin.run_states]
            learned[rank] = (learned[rank] or 0) + 1
        for donor, recipient in begin.run_states:
            assert donor in whole
            assert recipient not in whole
            whole.add(recipient)
        for donor, recipient in begin.state_transfers:
            assert begin.stages[donor] == begin.stages[recipient]
            assert donor in whole
            assert recipient not in whole
            whole.add(recipient)
            learned[recipient] = learned[donor]
        assert whole == set(range(begin.workers))
        assert begin.restore is not None or set(learned.values()) == {top}

    def _goes_back(self, known: list[Process]) -> bool:
        """Whether the last generation went back and some have not: then whoever has lost nothing by going there again."""
        late = [process for process in known if process.to_restore or process.to_take]
        there = [steps_of(process.progress) for process in known if process not in late]
        return self.begins[-1].forgets and bool(late) and max(there, default=0) <= (self.checkpoint or 0)

    def _is_hosted(self, known: list[Process], stage: int, top: int) -> bool:
        """By one that took part in the last step; who waits for what it learned from another has not."""
        hosts = [process for process in known if process.stage == stage]
        return any(host.learned == top or (host.learned == top - 1 and not host.to_take) for host in hosts)

    def _check_donors(self, begin: Begin) -> None:
        """No committed step is lost while a worker is not known to be dead that has it; all others get it, once."""
        workers = [process for process in self.processes.values() if process.role == "worker"]
        known = [process for process in workers if process.id not in self.known_dead]
        highest = latest(process.progress for process in known)
        donors = {begin.members[donor] for donor, _ in begin.state_transfers}
        recipients = [begin.members[recipient] for _, recipient in begin.state_transfers]
        assert len(recipients) == len(set(recipients))
        assert not donors & set(recipients)
        if begin.forgets:
            assert begin.restore is not None
            assert begin.fallbacks == begin.all_fallbacks == ()
            assert not self.free or steps_of(highest) < (self.checkpoint or 0) or self._nobody_keeps(known, highest)
            nobody = highest is None  # of those who are alive has begun
            assert nobody or self._lost_rows(known, highest) or steps_of(highest) < (self.checkpoint or 0)
            assert donors <= {begin.members[begin.restore]}
            assert set(recipients) == set(begin.members) - {begin.members[begin.restore]}
            return
        lost = self._lost_rows(known, highest)
        if self.free and lost and begin.restore is None:
            heir = min(set(range(self.requirements.shards)) - lost)
            assert begin.fallbacks == tuple((shard, heir) for shard in sorted(lost))
        else:
            assert not lost, "a run goes on without the state of a shard"
            assert not begin.fallbacks
        if begin.restore is not None:
            assert self.checkpoint is not None
            assert highest is None or highest.steps < self.checkpoint
            assert donors <= {begin.members[begin.restore]}
            assert set(recipients) == set(begin.members) - {begin.members[begin.restore]}
            return
        assert highest is not None or self.checkpoint is None
        assert highest is None or self.checkpoint is None or highest.steps >= self.checkpoint
        for rank, member in enumerate(begin.members):
            process = self.processes[member]
            if highest is None:
                assert process.role == "server" or process.progress is None
                assert member not in recipients
            elif rank < begin.workers and process.progress == highest:
                assert member not in recipients
            else:
                assert member in recipients
        assert all(self.processes[donor].progress == highest for donor in donors)

    def _nobody_keeps(self, known: list[Process], highest: Progress | None) -> bool:
        return len(self._lost_rows(known, highest)) == self.requirements.shards

    def _lost_rows(self, known: list[Process], highest: Progress | None) -> set[int]:
        """The shards whose state at the top nobody has."""
        if not self.shard_state or advances_of(highest) == 0:
            return set()
        at_top = [process.held for process in known if behind(process.progress, highest) == 0]
        a_step_behind = [process.staged for process in known if behind(process.progress, highest) == 1]
        return set(range(self.requirements.shards)).difference(*at_top, *a_step_behind)

    def _enter(self, process: Process, rank: int, begin: Begin) -> None:
        moves = [(begin.members[donor], shards) for donor, recipient, shards in begin.moves if recipient == rank]
        process.to_receive = moves
        process.to_inherit = bool(begin.fallbacks) and rank < begin.workers
        process.begin, process.peers = begin, [self.processes[member] for member in begin.members]
        process.contributed = process.called_off = process.finished = False
        process.halt = process.voted = process.request = 0
        process.to_restore = begin.restore == rank or rank in begin.restorers
        if self.staged:
            process.stage, process.to_apply = begin.stages[rank], rank in begin.applies
            process.summed = process.summed and process.to_apply
            told = [donor for donor, recipient in begin.run_states if recipient == rank]
            process.told_by = begin.members[told[0]] if told else None
            if not any(steps_of(self.processes[member].progress) for member in begin.members):
                process.learned = 0  # what each has built itself
        process.to_take = any(recipient == rank for _, recipient in begin.state_transfers)
        if process.role == "server":
            process.progress = None  # it forgets with its generation
        process.to_give = {begin.members[recipient] for donor, recipient in begin.state_transfers if donor == rank}
        if process.alive:
            assert process.state == "idle"
            process.state = "running"

    def _call_off(self, command: CallOff) -> None:
        assert command.generation == self.begins[-1].generation
        for member in command.members:
            assert member not in self.known_dead
            assert member in self.begins[-1].members
            self.processes[member].called_off = True

    def _end(self, command: End) -> None:
        self.end = command
        if command.error is None:
            here = [self.processes[member] for member in self.begins[-1].members]
            finished = [process for process in here if process.role == "worker" and process.finished]
            assert finished
            assert all(self._is_done(process) for process in finished)
            unfinished = [process for process in here if process.role == "worker" and not process.finished]
            assert all(process.id in self.known_dead for process in unfinished)

    # ---- what happens to processes

    def living(self, role: Role | None = None) -> list[Process]:
        return [process for process in self.processes.values() if process.alive and role in (None, process.role)]

    def ready(self, process: Process) -> None:
        process.state = "idle"
        run_manifest = self.run_manifest if process.role == "worker" else {}
        card = self.card_of(process)
        process.news.append(Ready(process.id, run_manifest, can_restore=True, node=process.node, card=card))

    def card_of(self, process: Process) -> str:
        """The GPU on which it computes; empty where the run has none."""
        return f"GPU-{process.id % self.cards}" if self.cards and process.role == "worker" else ""

    def drain(self, process: Process, seconds: float | None) -> None:
        """Its node goes away."""
        self.draining.add(process.id)
        self.tell(Drained((process.id,), seconds))

    def no_room(self, process: Process) -> None:
        process.state = "dead"
        process.news.append(NoRoom(process.id, "no free CPU"))

    def kill(self, process: Process, heard: bool = True) -> None:
        """heard: whether what it said before comes through."""
        last = self.heartbeat(process) if self.near and process.state in ("idle", "running") else None
        process.state = "dead"
        if not heard:
            process.news.clear()
        process.news.append(Died(process.id, "killed", last=last))

    def card_fails(self, process: Process, code: str) -> None:
        """The process tells so, and can do nothing any more."""
        last = self.heartbeat(process) if process.state == "running" else None
        step, shard = (last.step, last.shard) if last is not None and last.activity == "compute" else (None, None)
        process.state = "dead"
        error = card_faults.BY_CODE[code].told("CUDA error")
        process.news.append(CardFailed(process.id, error, code, self.card_of(process), step, shard))

    # ---- what members do

    def actions(self, process: Process) -> Iterator[str]:
        """The actions that this running member can take now."""
        if not process.acts:
            return
        if process.called_off:
            yield "obey"
        if self._lost_peers(process):
            yield "notice"
        if process.to_restore:
            yield "restore"
        elif process.told_by is not None:
            donor = self.processes[process.told_by]
            if donor.acts and not donor.to_restore:
                yield "be told"
        elif process.to_take and self._donor(process) is not None:
            yield "take"
        elif process.to_inherit and not process.to_take and not process.to_give:
            yield "inherit"
        elif process.to_receive and not process.to_take and not process.to_give:
            donor = self.processes[process.to_receive[0][0]]
            if donor.acts and not donor.to_restore and not donor.to_take and not donor.to_inherit:
                yield "receive"
        elif not self._busy_before(process):
            if self._is_done(process):
                yield "finish"
            elif process.halt and not self._evaluation_is_due(process):
                yield "halt"
            elif not process.contributed:
                yield "contribute"
            elif self._all_contributed(process):
                if self.staged and not process.summed and not self._evaluation_is_due(process):
                    yield "sum"
                elif not self.staged or self._may_commit(process):
                    yield "commit"

    def act(self, process: Process, action: str, heard: bool = True) -> None:
        """heard: whether what it said comes through when this is its end."""
        if action == "contribute" and self._poisonous(process) is not None:
            self.kill(process, heard)
        elif action == "contribute" and self._misses(process) is not None:
            self._leave(process, "peer", accuses=self._misses(process))
        elif action == "obey":
            self._leave(process, "called off")
        elif action == "notice":
            peer, accused = self._lost_peers(process)[0]
            self._leave(process, "peer", accuses=peer if accused else None)
        elif action == "sum":
            process.summed = True
        elif action == "halt":
            self._leave(process, "stop" if process.halt == 2 else "regroup")
        else:
            do = {
                "restore": self._restore,
                "be told": self._be_told,
                "take": self._take,
                "receive": self._receive,
                "inherit": self._inherit,
                "contribute": self._contribute,
                "commit": self._commit,
                "finish": self._finish,
            }
            do[action](process)

    def _restore(self, process: Process) -> None:
        process.to_restore, process.staged = False, {}
        if self.checkpoint is None:
            assert process.begin is not None
            assert process.begin.forgets
            process.progress, process.held, process.learned = self._start, {}, 0
            return
        rests = self.saved[self.checkpoint] if self.free else None
        process.progress = Progress(self.checkpoint, barriers=rests)
        advances = advances_of(process.progress)
        process.held = {shard: (advances, shard) for shard in range(self.requirements.shards)}
        process.learned = self.checkpoint

    def _be_told(self, process: Process) -> None:
        assert process.told_by is not None
        if process.to_apply:
            process.to_apply = False
            self._commit_step(process)
        process.progress, process.told_by = self._at(self.processes[process.told_by]), None

    def _take(self, process: Process) -> None:
        donor = self._donor(process)
        assert donor is not None
        ahead = behind(process.progress, donor.progress)
        process.held = process.held if ahead == 0 else process.staged if ahead == 1 else {}
        process.staged = {}
        process.progress, process.to_take = self._at(donor), False
        process.learned = donor.learned
        donor.to_give.discard(process.id)

    def _receive(self, process: Process) -> None:
        donor, (_, shards) = self.processes[process.to_receive[0][0]], process.to_receive.pop(0)
        assert behind(donor.progress, process.progress) == 0, "what a shard keeps is of another step"
        if advances_of(donor.progress) > 0:
            assert donor.held.keys() >= set(shards), "who is to give it does not have it"
            process.held |= {shard: donor.held[shard] for shard in shards}

    def _inherit(self, process: Process) -> None:
        assert process.begin is not None
        process.to_inherit = False
        for lost, heir in process.begin.fallbacks:
            if heir in process.held:
                process.held[lost] = process.held[heir]

    def _contribute(self, process: Process) -> None:
        process.contributed = True
        assert not self.staged or process.learned == steps_of(process.progress), (
            "it has not the parameters of this step"
        )
        self._stage(process)
        self._vote(process)

    def _finish(self, process: Process) -> None:
        process.finished, process.state = True, "idle"
        digest = "digest" if process.role == "worker" else None
        held, staged = self._rows(process)
        number, progress = self._number(process), process.progress
        process.news.append(finishes(process.id, number, progress, digest, held=held, staged=staged))

    def link_failure(self, accuser: Process, accused: Process) -> None:
        assert accuser.begin is not None
        self._leave(accuser, "peer", accuses=accuser.begin.members.index(accused.id))

    def _commit(self, process: Process) -> None:
        process.contributed = False
        if self._evaluation_is_due(process):
            process.progress = replace(self._at(process), evaluated=True)
            return
        self._commit_step(process)
        process.halt, process.voted = process.voted, 0

    def _commit_step(self, process: Process) -> None:
        before = steps_of(process.progress)
        rests = advances_of(process.progress) + 1 if self.free else None
        steps = before + 1 if rests is None else AT_REST[rests]
        process.held, process.staged = process.staged, {}
        process.progress = Progress(steps, steps // self.evaluate_every == before // self.evaluate_every, rests)
        if self.staged:
            assert process.summed
            assert process.learned == before
            process.learned, process.summed = steps, False
        process.news += [Stepped(step) for step in range(before, steps)]

    def _vote(self, process: Process) -> None:
        """The vote of a step is complete with the last contribution; all hear the same, and halt once they committed."""
        if self._all_contributed(process) and not self._evaluation_is_due(process):
            peers = process.peers
            halt = max(peer.request for peer in peers)
            for peer in peers:
                if self._at(peer) == self._at(process):
                    peer.voted, peer.request = halt, 0

    def _leave(self, process: Process, why: str, accuses: int | None = None) -> None:
        process.state = "idle"
        held, staged = self._rows(process)
        number = self._number(process)
        rows = {"held": held, "staged": staged, "holds_sum": process.summed}
        process.news.append(leaves(process.id, number, why, process.progress, accuses, **rows))

    def _stage(self, process: Process) -> None:
        begin = process.begin
        assert begin is not None
        rank = begin.members.index(process.id)
        if self.shard_state and rank < begin.workers and not self._evaluation_is_due(process):
            advances = advances_of(process.progress)
            if advances > 0:
                assert {shard: process.held.get(shard) for shard in begin.shards[rank]} == {
                    shard: self._told_to_have(begin, advances)[shard] for shard in begin.shards[rank]
                }, "a shard's state is another than the record tells"
            process.staged = {shard: (advances + 1, shard) for shard in begin.shards[rank]}

    def _told_to_have(self, begin: Begin, advances: int) -> Rows:
        """The state with which each shard goes on, as a replay finds it: from the record alone, which tells heirs for the
        sprint of a generation's first rest."""
        rows = {shard: (advances, shard) for shard in range(self.requirements.shards)}
        for lost, heir in begin.all_fallbacks if advances == self.base else ():
            rows[lost] = rows[heir]
        return rows

    def _rows(self, process: Process) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if not self.shard_state:
            return (), ()
        return tuple(sorted(process.held)), tuple(sorted(process.staged))

    def _number(self, process: Process) -> int:
        assert process.begin is not None
        return process.begin.generation

    def _at(self, process: Process) -> Progress:
        return process.progress or self._start

    @property
    def _start(self) -> Progress:
        return Progress(0, barriers=0) if self.free else START

    def _is_done(self, process: Process) -> bool:
        return process.progress is not None and process.progress.steps == self.steps and process.progress.evaluated

    def _evaluation_is_due(self, process: Process) -> bool:
        return process.progress is not None and not process.progress.evaluated

    def _all_contributed(self, process: Process) -> bool:
        """Everybody has contributed to this barrier, or is past it."""
        at = self._at(process)
        for peer in process.peers:
            theirs = self._at(peer)
            if not (peer.contributed if theirs == at else reached(theirs, at)):
                return False
        return not any(map(self._busy_before, process.peers))

    def _may_commit(self, process: Process) -> bool:
        """Whether everybody has its sum, or is past it."""
        if not self.second_vote or self._evaluation_is_due(process):
            return True
        return all(peer.summed or passed(self._at(peer), self._at(process)) for peer in process.peers)

    def _busy_before(self, process: Process) -> bool:
        own = process.to_restore or process.to_take or process.to_inherit or process.to_give or process.to_receive
        if own or process.told_by is not None:
            return True
        me = process.id
        for peer in process.peers:
            if peer.told_by == me or (peer.to_receive and any(me == donor for donor, _ in peer.to_receive)):
                return True
        return False

    def _donor(self, process: Process) -> Process | None:
        donor = next(peer for peer in process.peers if process.id in peer.to_give)
        busy = donor.to_restore or donor.told_by is not None
        return donor if donor.acts and not busy else None

    def _lost_peers(self, process: Process) -> list[tuple[int, bool]]:
        """Ranks that are dead (whom it accuses) or have said farewell (whom it does not, unless it missed that)."""
        if self.deaf or all(peer.state == "running" for peer in process.peers):
            return []
        return [
            (rank, self.races or not peer.alive)
            for rank, peer in enumerate(process.peers)
            if not peer.alive or (peer.state == "idle" and not peer.finished)
        ]
