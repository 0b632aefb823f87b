"""A cluster inside one process: Ray's verbs, the network, the storage and the clock are doubles that keep Ray's promises and no
others. The rest is real: `members`, `member_actor`, `calls` and `reporter` of `cluster.actors`, the engine, the checkpoints and
the driver above them.

Ray promises that calls of an actor are carried out in their order, one after the other. An answer may come as late as it
likes, but before the news of the actor's death. The news may take seconds. Answers that an actor gave before its death may be
lost with it. Reports of this node are there as they are sent, and calls of members may be late; reports and calls of another
node may be late, or lost with its relay, which is another one then.

It does not pickle by reference, restart actors, or find room. A member that finds none is one that never starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from ray.exceptions import RayActorError

from orchestrator.checkpoint import catalog, writer
from orchestrator.checkpoint.storage import Buffer
from orchestrator.cluster.actors import calls, checkpoint_client, event_queue, member_actor, members, reporter
from orchestrator.cluster.actors.host_relay import REPORT, Report
from orchestrator.cluster.actors.post_mortem import PostMortem
from orchestrator.comm.transports import shared_memory, sockets
from orchestrator.comm.transports.base import PeerLost, Received, Tag
from orchestrator.config.plan import Plan, Variant
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import Settings
from orchestrator.driver.run import event_sink, session, startup
from orchestrator.numerics import allocator
from orchestrator.records import phases
from orchestrator.records.progress import Activity, Progress, in_words
from orchestrator.worker import hooks
from orchestrator.worker.between_steps import timing
from orchestrator.worker.member import cancellation, crash_record, heartbeat, stack_dump, stamps, time_account
from orchestrator.worker.member.generation import Generation
from tests.checkpoint.stores import InMemory
from tests.comm.transports import memory
from tests.comm.transports.memory import Hub, LocalRegions, MemoryTransport
from tests.virtual_cluster.scheduling import Condition, Process, Schedule

HERE, THERE = "here", "there"  # nodes; the driver lives on the first
_FIRST_PID = 10_000_000  # above any pid of Linux
_TIMED = (members, reporter, session, startup, event_sink, catalog, writer, cancellation, timing, stamps, hooks, memory)


class Misfortune:
    """The events that happen to a cluster, and when: none, here. Each verb says who does what; it may kill whom it likes."""

    def starts(self, member: Member) -> None:
        """Before it begins to prepare; its start may be put off, or fail."""

    def meets(self, member: Member | None) -> None:
        """Before this member does anything, or the driver (None)."""

    def beats(self, member: Member) -> None:
        """Once it has noted where it is."""

    def sends(self, member: Member, tag: Tag) -> None:
        """Before it sends this message."""

    def prepares(self, member: Member) -> None:
        """May raise what preparing may raise."""

    def stores(self, verb: str) -> None:
        """May raise OSError."""


@dataclass(eq=False)
class Member(Process):
    """A process of the cluster, with what can be seen of it from outside."""

    number: int = -1
    pid: int = 0
    role: str = "worker"
    node: str = HERE
    actor: Any = None
    ready: bool = False
    stuck: bool = False
    last_beat: dict[str, Any] | None = None  # in its crash record
    last_words: str = ""  # on its standard error
    hubs: list[tuple[Hub, int]] = field(default_factory=list)
    asked: list[Callable[[], None]] = field(default_factory=list)  # calls of Ray that it has not carried out
    pending: list[Reference] = field(default_factory=list)
    relays: Any = None  # of its driver

    @property
    def is_well(self) -> bool:
        return self.alive and not self.stopped and not self.stuck

    @property
    def progress(self) -> Progress | None:
        member = getattr(self.actor, "_member", None)
        progress: Progress | None = None if member is None else member.progress
        return progress


@dataclass(eq=False)
class Reference:
    """seen: when the driver can see that it is done."""

    member: Member
    done: bool = False
    seen: bool = False
    value: Any = None
    error: Exception | None = None
    waiting: list[Callable[[Reference], None]] = field(default_factory=list)

    def future(self) -> Reference:
        return self

    def add_done_callback(self, act: Callable[[Reference], None]) -> None:
        if self.seen:
            act(self)
        else:
            self.waiting.append(act)

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value

    def show(self) -> None:
        """Once: the member may have died after it had answered, and before the driver saw that."""
        if self.seen:
            return
        self.seen = True
        for act in self.waiting:
            act(self)


class Cluster:
    """lateness_s: how late an answer may come. Misfortune may look at everything here."""

    def __init__(self, schedule: Schedule, settings: Settings, misfortune: Misfortune, lateness_s: float = 0.0) -> None:
        self.schedule = schedule
        self.settings = settings
        self.misfortune = misfortune
        self.lateness_s = lateness_s
        self.everybody: list[Member] = []
        self.generations: dict[int, tuple[Hub, dict[int, Member]]] = {}
        self.cut: set[frozenset[int]] = set()  # pairs of members that cannot reach each other
        self.misses_farewells = False
        self.files = InMemory()
        self.story: list[str] = []
        self.next_member = -1
        self.relays: Relays | None = None  # of the driver of the present life
        self.lives_on = False  # the driver of the present life has begun a generation
        self.contribution: Variant | None = None
        self.replay: Sequence[Mapping[str, Any]] = ()
        self.sat_out: Mapping[int, tuple[int, ...]] = {}

    # ---- for who looks at it

    @property
    def dice(self) -> Random:
        return self.schedule.dice

    @property
    def plan(self) -> Plan:
        plan = resolve(self.settings)
        update = replace(plan.update, contribution=self.contribution)
        return replace(plan, update=update, replay=tuple(self.replay), data=replace(plan.data, sat_out=self.sat_out))

    def tell(self, text: str) -> None:
        self.story.append(f"{self.schedule.now:9.3f} {text}")

    def living(self, role: str | None = None) -> list[Member]:
        return [member for member in self.everybody if member.alive and role in (None, member.role)]

    def kill(self, member: Member, *, heard: bool = True) -> None:
        """heard: whether what it answered comes through."""
        if not member.alive:
            return
        self.tell(f"{member.name} dies {in_words(member.progress)}, {member.last_beat}")
        member.alive = False
        for hub, rank in member.hubs:
            hub.kill(rank)
        if not heard and member.node != HERE:
            member.relays.lose(member)
        lost = [reference for reference in member.pending if not reference.seen and not (heard and reference.done)]
        delay = self._late(max(0.5, self.lateness_s)) + self.lateness_s
        for reference in lost:
            reference.done, reference.error = True, RayActorError(error_msg="the actor died")
            self._show(reference, delay + self._late(0.5))

    def meet(self, member: Member | None = None) -> None:
        """The member that has the turn, or the driver (None), is about to do something."""
        self.misfortune.meets(member)
        self.schedule.pause()

    def here(self) -> Member:
        """The process that has the turn."""
        process = self.schedule.current.process
        assert isinstance(process, Member)
        return process

    # ---- Ray

    def start(self, role: str, node: str, make: Callable[[], member_actor.MemberActor]) -> Member:
        number = self.next_member
        member = Member(
            f"{role} {number}",
            number=number,
            pid=_FIRST_PID + number,
            role=role,
            node=node,
            weight=self.dice.choice([1.0, 1.0, 1.0, 0.2, 0.03]),
            relays=self.relays,
        )
        self.everybody.append(member)

        def begin() -> None:
            self.schedule.sleep(self._late(2.0))
            self.misfortune.starts(member)
            member.actor = make()
            while True:
                self.schedule.wait_for(lambda: bool(member.asked))
                member.asked.pop(0)()

        self.schedule.spawn(begin, member)
        return member

    def call(self, member: Member, verb: str) -> Reference:
        reference = Reference(member)
        member.pending = [*(each for each in member.pending if not each.seen), reference]
        if not member.alive:
            reference.done, reference.error = True, RayActorError(error_msg="the actor is dead")
            self._show(reference, self._late(1.0))
            return reference

        def act() -> None:
            reference.value = getattr(member.actor, verb)()
            reference.done = True
            self._show(reference, self._late(self.lateness_s))

        member.asked.append(act)
        self.schedule.touch(member)
        return reference

    def _show(self, reference: Reference, delay_s: float) -> None:
        if delay_s > 0:
            self.schedule.at(self.schedule.now + delay_s, reference.show)
        else:
            reference.show()

    def _late(self, most_s: float) -> float:
        """Mostly at once."""
        return self.dice.random() * most_s if self.dice.random() < 0.3 else 0.0

    def end(self, member: Member) -> None:
        """`ray.kill`: at once on this node, within seconds on another."""
        if member.node == HERE:
            self.kill(member)
        else:
            self.schedule.at(self.schedule.now + self._late(2.0), lambda: self.kill(member))

    # ---- the network

    def announce(self, generation: Generation, rank: int, member: Member) -> None:
        """A member of a generation, before it is told of it."""
        number = generation.number
        if number not in self.generations:
            ranks = range(generation.schedule.members)
            pairs = {(rank, peer) for rank in ranks for peer in generation.peers_of(rank)}
            self.generations[number] = Hub(len(ranks), pairs), {}
            self.tell(
                f"generation {number}: state transfers {generation.begin.state_transfers}, restore {generation.restore}"
            )
        self.lives_on = True
        hub, present = self.generations[number]
        assert rank not in present, "a generation's number was given again"
        present[rank] = member
        member.hubs.append((hub, rank))
        self.tell(f"  {rank} is {member.name} {in_words(member.progress)}{'' if member.alive else ', dead'}")
        if not member.alive:
            hub.kill(rank)

    def regions(self) -> LocalRegions:
        self.misfortune.prepares(self.here())
        return LocalRegions()

    def connect(
        self,
        listener: Listener,
        rank: int,
        number: int,
        peers: dict[int, Any],
        regions: LocalRegions,
        timeout_s: float,
        _: int,
    ) -> Wire:
        member = self.here()
        self.meet(member)
        hub, present = self.generations[number]
        assert present[rank] is member
        joined = hub.__dict__.setdefault("joined", set())
        joined.add(rank)

        def lost() -> list[int]:
            return [peer for peer in peers if hub.states[peer] is not hub.states[rank] and peer not in joined]

        arrived = self.schedule.wait_for(
            lambda: number <= listener.cancelled or peers.keys() <= joined or bool(lost()), timeout_s
        )
        if number <= listener.cancelled:
            raise ConnectionAbortedError(f"generation {number} was called off")
        if lost() or not arrived:
            raise PeerLost([*lost(), *(peer for peer in peers if peer not in joined)][0], "it cannot be reached")
        return Wire(self, hub, rank, present, regions)


class Listener:
    """In place of `sockets.Listener`."""

    def __init__(self, *_arguments: Any) -> None:
        self.addresses = {"unix": "a socket", "tcp": "a port"}
        self.cancelled = -1

    def cancel(self, generation: int) -> None:
        self.cancelled = max(self.cancelled, generation)


class Wire:
    """A transport of the hub that meets misfortune at each verb, and knows of connections that are cut."""

    def __init__(
        self, cluster: Cluster, hub: Hub, rank: int, present: dict[int, Member], regions: LocalRegions
    ) -> None:
        self._inner = MemoryTransport(hub, rank, regions)
        self._cluster = cluster
        self._member = present[rank]
        self._present = present
        self._peers = [peer for peer, to in hub.messages if to == rank]
        self.travels = self._inner.travels

    @property
    def sent_bytes(self) -> int:
        return self._inner.sent_bytes

    def send(self, peer: int, tag: Tag, payload: torch.Tensor, note: int = 0, *, done: bool = False) -> None:
        self._cluster.misfortune.sends(self._member, tag)
        self._cluster.meet(self._member)
        self._check(peer)
        self._inner.send(peer, tag, payload, note, done=done)

    def receive(self, peer: int, tag: Tag, timeout_s: float) -> Received:
        self._check(peer)
        return self._inner.receive(peer, tag, timeout_s)

    def poll(self, phases: Collection[int], timeout_s: float) -> list[tuple[int, Tag, Received]]:
        self._cluster.meet(self._member)
        for peer in self._peers:
            self._check(peer)
        return self._inner.poll(phases, timeout_s)

    def flush(self, timeout_s: float) -> None:
        self._inner.flush(timeout_s)

    def close(self, timeout_s: float = 3.0) -> None:
        if self._cluster.misses_farewells and timeout_s < 1.0 and self._cluster.dice.random() < 0.2:
            self._inner.abort()
        else:
            self._inner.close()

    def abort(self) -> None:
        self._inner.abort()

    def _check(self, peer: int) -> None:
        if frozenset((self._member.number, self._present[peer].number)) in self._cluster.cut:
            raise PeerLost(peer, "the connection is broken")


# ---- what is seen of the cluster in place of Ray, of processes and of places


class Kind:
    """The double of what `ray.remote` makes of a class."""

    def __init__(self, cluster: Cluster, node: str = HERE) -> None:
        self._cluster = cluster
        self._node = node

    def options(self, node: str) -> Kind:
        return Kind(self._cluster, node)

    def remote(self, role: member_actor.Role, *arguments: Any, **more: Any) -> Handle:
        make = lambda: Actor(self._cluster.here(), role, *arguments, **more)  # noqa: E731
        return Handle(self._cluster, self._cluster.start(role, self._node, make))


@dataclass
class Handle:
    cluster: Cluster
    member: Member

    def __getattr__(self, verb: str) -> Any:
        return SimpleNamespace(remote=lambda: self.cluster.call(self.member, verb))


class Actor(member_actor.MemberActor):
    """The real one, of whom is noted when it is ready."""

    def __init__(self, process: Member, *arguments: Any, **more: Any) -> None:
        self._process = process
        super().__init__(*arguments, **more)

    def prepare(self, storage: str | None = None) -> member_actor.Answer:
        answer = super().prepare(storage)
        self._process.ready = True
        return answer


class Relays:
    """In place of `host_relays.HostRelays`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._woken = False
        self._sent: list[tuple[float, Report]] = []  # with the moment at which it can be seen
        self._reporters: dict[int, tuple[Member, reporter.Reporter]] = {}
        self._unconfirmed: dict[int, calls.Unconfirmed] = {}
        self._calling: dict[int, list[tuple[float, int, bytes]]] = {}  # by member, on their way to it
        self.eager: int | None = None

    def begin(self, reports: reporter.Reporter, handler: calls.CallHandler, member: Member) -> None:
        """In place of `reporter.begin`."""
        cluster = self._cluster
        self._reporters[member.number] = member, reports
        send = lambda: lambda packed, _: self._send(member, packed)  # noqa: E731
        cluster.schedule.spawn(lambda: reports.serve(send), member, f"{member.name} reports")
        cluster.schedule.spawn(lambda: self._listen(handler, member), member, f"{member.name} calls")

    def _listen(self, handler: calls.CallHandler, member: Member) -> None:
        calling = self._calling.setdefault(member.number, [])
        while True:
            self._cluster.schedule.wait_for(lambda: bool(calling))
            moment, number, call = calling.pop(0)
            if moment > self._cluster.schedule.now:
                self._cluster.schedule.sleep(moment - self._cluster.schedule.now)
            handler.hear(number, call)
            self._cluster.schedule.touch(member)

    def call(self, number: int, place: int, call: bytes) -> None:
        self._unconfirmed.setdefault(number, calls.Unconfirmed()).put(place, call)
        self._hand_on(number, place, call)

    def _hand_on(self, number: int, place: int, call: bytes) -> None:
        calling = self._calling.setdefault(number, [])
        moment = self._cluster.schedule.now + self._cluster._late(self._cluster.lateness_s)
        calling.append((max([moment, *(each[0] for each in calling[-1:])]), place, call))
        if number in self._reporters:
            self._cluster.schedule.touch(self._reporters[number][0])

    def _send(self, member: Member, packed: bytes) -> None:
        cluster = self._cluster
        cluster.meet(member)
        _, first, next_call, urgent = REPORT.unpack_from(packed)
        late_s = 0.0
        if member.node != HERE:
            late_s = cluster._late(cluster.lateness_s)
            if cluster.dice.random() < 0.01:
                self.lose(member)
                raise ConnectionResetError("the relay is gone")
        before = [moment for moment, report in self._sent if report.member == member.number]
        seen = max([cluster.schedule.now + late_s, *before])
        if seen > cluster.schedule.now:
            cluster.schedule.at(seen, lambda: None)  # time stops then
        self._sent.append((seen, Report(member.number, first, urgent, packed[REPORT.size :], next_call)))

    def lose(self, member: Member) -> None:
        """Nothing that is on its way from it will arrive; calls on their way to it are sent again."""
        self._sent = [each for each in self._sent if each[1].member != member.number]
        self._calling.get(member.number, []).clear()
        for place, call in self._unconfirmed[member.number].rest() if member.number in self._unconfirmed else ():
            self._hand_on(member.number, place, call)

    def reach(self, *_: object) -> None: ...

    def wake(self) -> None:
        self._woken = True

    def wait(self, timeout_s: float) -> None:
        if timeout_s > 0:
            self._cluster.meet()
            self._cluster.schedule.wait_for(lambda: self._woken or bool(self._seen()), timeout_s)
        self._woken = False

    def take(self) -> list[Report]:
        seen = self._seen()
        self._sent = [each for each in self._sent if each not in seen]
        for _, report in seen:
            if report.member in self._unconfirmed:
                self._unconfirmed[report.member].confirm(report.next_call)
        return [report for _, report in seen]

    def _seen(self) -> list[tuple[float, Report]]:
        return [each for each in self._sent if each[0] <= self._cluster.schedule.now]

    def acknowledge(self, number: int, kept: int) -> None:
        member, reports = self._reporters[number]
        if member.alive:
            reports.kept(kept)

    def died(self, _: int) -> None: ...

    def may_say_more(self, _: int) -> bool:
        return False

    def post_mortem(self, number: int) -> PostMortem:
        """On another node it may be lost with that."""
        member = self._reporters[number][0] if number in self._reporters else None
        if member is None or member.actor is None or (member.node != HERE and self._cluster.dice.random() < 0.5):
            return PostMortem()
        return PostMortem(member.last_beat, str(member.actor._card), member.last_words)

    def drop(self, number: int) -> None:
        self._reporters.pop(number, None)
        self._unconfirmed.pop(number, None)

    def close(self, _: object) -> None: ...


class Beating(heartbeat.Heartbeat):
    def __init__(self, cluster: Cluster, times: time_account.TimeAccount) -> None:
        self._cluster = cluster
        self._member = cluster.here()
        super().__init__(self._remember, times)

    def beat(self, activity: Activity, step: int | None = None, shard: int | None = None, *, together: int = 0) -> None:
        self._cluster.meet(self._member)
        super().beat(activity, step, shard, together=together)
        self._cluster.misfortune.beats(self._member)

    def live(self) -> None:
        """A worker that waits lets the others go on."""
        self._cluster.schedule.sleep(1.0)
        super().live()

    def _remember(self, activity: Activity, step: int | None, shard: int | None) -> None:
        if self._member.alive:  # and not while its thread unwinds
            self._member.last_beat = {"activity": activity, "step": step, "shard": shard, "beats": self._beats}


class Store:
    """The storage as one process sees it."""

    def __init__(self, cluster: Cluster, member: Member | None) -> None:
        self._cluster = cluster
        self._member = member

    def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        self._act("put")
        self._cluster.files.put(name, pieces)
        self._cluster.meet(self._member)

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        self._act("get")
        return self._cluster.files.get(name, start, stop)

    def sizes(self) -> dict[str, int]:
        self._act("sizes")
        return self._cluster.files.sizes()

    def delete(self, name: str) -> None:
        self._act("delete")
        self._cluster.files.delete(name)

    def _act(self, verb: str) -> None:
        self._cluster.meet(self._member)
        self._cluster.misfortune.stores(verb)


class Background:
    """In place of the writer's threads: a task for each thing to do."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._process = cluster.here()
        self._name = f"{self._process.name} {name}"
        self.busy = False

    def start(self, act: Callable[[], None]) -> None:
        self.busy = True
        self._cluster.schedule.spawn(lambda: self._do(act), self._process, self._name)

    def _do(self, act: Callable[[], None]) -> None:
        self._cluster.schedule.sleep(self._cluster.dice.choice([0.0, 0.0, 0.01, 0.5]))
        act()
        self.busy = False

    def wait(self, timeout_s: float | None) -> bool:
        return not self.busy or self._cluster.schedule.wait_for(lambda: not self.busy, timeout_s)

    def close(self) -> None:
        pass


class Members(members.Members):
    """The real ones, who learn from the cluster what the kernel would tell."""

    def __init__(self, cluster: Cluster) -> None:
        cluster.relays = Relays(cluster)
        super().__init__(cluster.plan, b"secret")
        self._cluster = cluster

    def start(self, member: int, role: member_actor.Role, place: members.ActorPlacement) -> None:
        self._cluster.next_member = member
        super().start(member, role, place)

    def run(self, member: int, generation: Generation, rank: int, peers: dict[int, Any]) -> None:
        self._cluster.announce(generation, rank, self._members[member].actor.member)
        super().run(member, generation, rank, peers)

    def is_gone(self, member: int) -> bool:
        known = self._members[member]
        return known.pid is not None and known.node == HERE and not known.actor.member.alive


class Thread:
    """In place of `threading.Thread`."""

    def __init__(
        self, cluster: Cluster, *, target: Callable[..., Any], args: tuple[Any, ...], name: str, daemon: bool
    ) -> None:
        assert daemon
        process = cluster.here()
        self.start = lambda: cluster.schedule.spawn(lambda: target(*args), process, f"{process.name} {name}")


@contextmanager
def simulated(cluster: Cluster) -> Iterator[None]:
    """Inside the block the modules of orchestrator find themselves in this cluster."""
    schedule = cluster.schedule

    def within(node: Callable[[], str]) -> Any:
        return lambda: SimpleNamespace(get_node_id=node, get_accelerator_ids=lambda: {"GPU": []})

    ray = SimpleNamespace(
        remote=lambda **_: lambda _: Kind(cluster),
        kill=lambda handle, **_: cluster.end(handle.member),
        get_runtime_context=within(lambda: HERE),
    )
    offers = [{"NodeID": node, "Resources": {node: 1.0}} for node in (HERE, THERE)]  # each is a site of its name
    addresses = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")
    inside = within(lambda: cluster.here().node)
    ray_inside = SimpleNamespace(get_runtime_context=inside, nodes=lambda: offers, util=addresses)
    conditions = SimpleNamespace(Condition=lambda: Condition(schedule))
    threads = SimpleNamespace(Condition=lambda: Condition(schedule), Thread=lambda **thread: Thread(cluster, **thread))
    system = SimpleNamespace(
        **{name: getattr(os, name) for name in ("close", "geteuid", "getpriority", "PRIO_PROCESS")}
    )
    system.getpid, system.environ = lambda: cluster.here().pid, {}
    doubles: list[tuple[Any, str, Any]] = [
        *((module, "time", schedule) for module in _TIMED),
        (event_queue, "threading", conditions),
        (calls, "threading", threads),
        (memory, "threading", conditions),
        (writer, "Background", lambda name, **_: Background(cluster, name)),
        (members, "ray", ray),
        (members, "HostRelays", lambda *_: cluster.relays),
        (member_actor, "ray", ray_inside),
        (member_actor, "os", system),
        (member_actor, "sys", SimpleNamespace(path=[], modules={})),
        (member_actor, "Lease", lambda _: SimpleNamespace(renew=lambda: None)),
        (member_actor, "capture_prints", lambda _: None),
        (phases, "recorded", lambda *_: []),  # of this process, which has begun all members
        (member_actor, "begin", lambda *both: cluster.here().relays.begin(*both[:2], cluster.here())),
        (member_actor.MemberActor, "_describe", lambda *_: {"environment": {}, "modules": []}),
        (allocator, "give_back", lambda: None),  # takes as long as a run: all processes are this one
        (crash_record, "CrashRecord", lambda: SimpleNamespace(fd=0, note=None, note_card=None)),
        (stack_dump, "StackDump", lambda: SimpleNamespace(place=None)),  # all processes are this one
        (heartbeat, "Heartbeat", lambda _, times: Beating(cluster, times)),
        (sockets, "Listener", Listener),
        (sockets, "connect", cluster.connect),
        (shared_memory, "SharedRegions", cluster.regions),
        (checkpoint_client, "open_storage", lambda _: Store(cluster, cluster.here())),
        (checkpoint_client, "open_shared", lambda _: Store(cluster, cluster.here())),
    ]
    with ExitStack() as stack:
        for module, name, double in doubles:
            stack.enter_context(patch.object(module, name, double))
        yield
