"""A run as a seed draws it: how it is laid out in each of its lives, and what happens to it, drawn as it goes on.

Except in wild runs, events stay below the bounds at which a run rightly ends (rule D3).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from orchestrator.comm.transports.base import Tag
from orchestrator.config.settings import CheckpointSettings, ClusterSettings, Every, Settings, Workers
from orchestrator.driver.terminal.signals import PendingSignal
from orchestrator.records.progress import steps_of
from orchestrator.worker.pipeline_parallel import messages
from tests.virtual_cluster.cluster import Cluster, Member, Misfortune
from tests.worker import pipelines
from tests.worker.elastic import EVERYTHING
from tests.worker.runs import Layout, settings_for

STEP_TIMEOUT_S = 8.0
START_TIMEOUT_S = 120.0
MOST_LIVES = 5
_AT_THE_VOTE = 0.05
_BUSY = ("compute", "evaluate", "update", "checkpoint")  # where who stands still is to blame
_KINDS = [
    *["die"] * 4,
    *["die_other", "all_die", "idle_dies", "stop", "cut", "damage", "storage", "signal", "crash", "pause", "trouble"],
]

IDENTITIES: dict[str, dict[str, Any]] = {
    "rich": {"pipeline": pipelines.Batchnorm, **EVERYTHING},
    "plain": {"pipeline": pipelines.Mlp, "steps": 8, "shards": 4, "args": {"held_out": None}},
    "fast": {"pipeline": pipelines.Mlp, "steps": 6, "shards": 4, "reduction": "fast"},
    "sparse": {"pipeline": pipelines.LayerDrop, "steps": 6, "shards": 4, "evaluate_every": Every(steps=3)},
}
ASYNCHRONOUS: dict[str, dict[str, Any]] = {
    "bap": {**IDENTITIES["rich"], "sync": {"name": "bap", "rest_every": 2}},
    "ssp": {**IDENTITIES["plain"], "sync": {"name": "ssp", "staleness": 1, "rest_every": 3}},
    "asp": {**IDENTITIES["sparse"], "sync": {"name": "asp", "threshold": 0.05, "rest_every": 20}},
    "asp, bounded": {**IDENTITIES["rich"], "sync": {"name": "asp", "staleness": 2, "rest_every": 1}},
    "gossip": {**IDENTITIES["rich"], "sync": {"name": "gossip", "graph": "ring", "rest_every": 2}},
}
STAGED = {"rich": (2, 2, 3), "plain": (2,), "sparse": (2,)}  # by identity: into how many stages its model is cut


class Crash(BaseException):
    """The driver is no more."""


@dataclass(frozen=True)
class Plan:
    """The part of a run that is drawn before it begins.

    layouts: one per life, of which there is another when the driver is killed, or the run is interrupted or rightly fails.
    haste, lateness_s: see `Schedule`, `Cluster`. budget: how much happens. apart: some members live on another node.
    everywhere: checkpoints are reached there, too. wild: more happens than a run has to bear. shard_state: shards keep state.
    If a model is cut into stages, each layout has its own number of them, and some have the whole model.
    """

    seed: int
    identity: str
    layouts: tuple[Settings, ...] = field(repr=False)
    haste: float
    lateness_s: float
    budget: int
    apart: bool
    everywhere: bool
    wild: bool
    misses_farewells: bool
    shard_state: bool = False


def plan(
    seed: int, *, shard_state: bool = False, staged: bool = False, identities: Sequence[str] = (*IDENTITIES, "rich")
) -> Plan:
    dice = Random(seed)
    identity = dice.choice(list(STAGED) if staged else identities)
    layouts = [_layout(dice, identity) for _ in range(MOST_LIVES)]
    if staged:
        cuts = [dice.choice(STAGED[identity]), *(dice.choice([1, *STAGED[identity]]) for _ in range(1, MOST_LIVES))]
        layouts = [_cut(dice, each, stages) for each, stages in zip(layouts, cuts, strict=True)]
    return Plan(
        seed,
        identity,
        tuple(_with_cluster_of(layouts[0], each) if identity == "fast" else each for each in layouts),
        haste=dice.choice([0.0, 0.5, 0.9]),
        lateness_s=dice.choice([0.0, 0.1, 1.0]),
        budget=dice.choice([1, 2, 3, 4, 6, 9]),
        apart=dice.random() < 0.2,
        everywhere=dice.random() < 0.7 or shard_state or staged or identity in ASYNCHRONOUS,
        wild=dice.random() < 0.2,
        misses_farewells=dice.random() < 0.2,
        shard_state=shard_state,
    )


def calm(identity: str, layout: Layout) -> Plan:
    """Nothing happens."""
    settings = _settings(identity, layout)
    return Plan(0, identity, (settings,), 0.9, 0.0, 0, apart=False, everywhere=True, wild=False, misses_farewells=False)


def _layout(dice: Random, identity: str) -> Settings:
    served = [] if identity == "gossip" else ["parameter_server"]
    by_node = [] if identity == "fast" else ["hierarchical"]  # whose layout is part of the result
    topology = dice.choice(["ring", "tree", *served, "peer_to_peer", *by_node])
    start = dice.choice([1, 2, 2, 3, 3, 4])
    ranged = dice.random() < 0.3 and identity != "fast"
    workers: Any = {"min": dice.randint(1, start), "max": dice.randint(start, 4)} if ranged else start
    servers = dice.choice([1, 1, 2]) if topology == "parameter_server" else None
    plain = _settings(identity, Layout(start, topology, servers=servers))
    cluster = ClusterSettings(
        workers=Workers.parse(workers),
        spares=dice.choice([0, 0, 1]) if start < 4 else 0,
        step_timeout_s=STEP_TIMEOUT_S,
        start_timeout_s=START_TIMEOUT_S,
    )
    every = dice.choice([None, Every(steps=1), Every(steps=2), Every(steps=3), Every(seconds=0.5)])
    return replace(plain, cluster=cluster, checkpoint=CheckpointSettings(every=every, keep=dice.choice([1, 2, 3])))


def _cut(dice: Random, whole: Settings, stages: int) -> Settings:
    """In so many stages, with workers that need not be a multiple of them, and without servers."""
    topology = replace(whole.topology, name="ring", options={}) if whole.topology.options else whole.topology
    start = dice.randint(stages, stages + 3)
    workers: Any = {"min": dice.randint(stages, start), "max": dice.randint(start, 6)} if dice.random() < 0.3 else start
    cluster = replace(whole.cluster, workers=Workers.parse(workers), stages=stages)
    return replace(whole, cluster=cluster if stages > 1 else whole.cluster, topology=topology)


def _with_cluster_of(first: Settings, other: Settings) -> Settings:
    """Under `reduction: fast` the layout determines the result."""
    return replace(other, cluster=first.cluster, topology=first.topology)


@functools.cache
def _settings(name: str, layout: Layout) -> Settings:
    return settings_for(layout=layout, **{**IDENTITIES, **ASYNCHRONOUS}[name])


class Chance(Misfortune):
    """Draws what happens, wherever anybody does anything: seldom, and then often again soon, in the midst of a recovery.

    In a run that is not wild it draws no more than the run has to bear: within the steps that anybody has been in, two losses,
    one of them a stall, and few of those who have not begun.
    """

    def __init__(self, drawn: Plan) -> None:
        self._dice = Random(drawn.seed + 1)
        self._plan = drawn
        self._left = drawn.budget
        self._rate = self._dice.choice([0.002, 0.005, 0.01])
        self._storm = 0
        self._window = 0
        self._window_end = -1
        self._window_stalls = 0
        self._early = 0
        self._refusals = 0
        self._out_of_reach = False
        self._total_losses = 0
        self.pending_signal = PendingSignal()
        self.damaged = False
        self.storage_failed = False
        self.trouble: str | None = None
        self.is_quiet = False
        self.cluster: Cluster

    @property
    def spoils_checkpoints(self) -> bool:
        return self.damaged or self.storage_failed

    def new_life(self, *, quiet: bool) -> None:
        self.pending_signal = PendingSignal()
        self.trouble = None
        self._early = 0
        self._window = self._window_stalls = 0
        self.is_quiet = quiet
        if quiet:
            self._left = 0

    def starts(self, member: Member) -> None:
        if self._left > 0 and self._dice.random() < 0.1 and self._may_fail_to_start():
            self._left -= 1
            if self._dice.random() < 0.5:
                self.cluster.tell(f"{member.name} dies before it has begun")
                self.cluster.kill(member)
            else:
                self.cluster.tell(f"{member.name} is long in coming")
                self.cluster.schedule.sleep(self._dice.choice([10.0, 30.0]))

    def prepares(self, member: Member) -> None:
        """A first one that cannot prepare rightly ends the run."""
        if self._left > 0 and self.cluster.lives_on and self._dice.random() < 0.05 and self._may_fail_to_start():
            self._left -= 1
            self.cluster.tell(f"{member.name} cannot prepare")
            raise OSError(24, "Too many open files")

    def vet(self, node: str | None, in_copy: bool) -> str | None:  # noqa: ARG002
        if self._left > 0 and self.cluster.lives_on and self._dice.random() < 0.05 and self._may_fail_to_start():
            self._left -= 1
            self.cluster.tell("the next one is not fit")
            return f"node {node} lacks the project"
        return None

    def meets(self, member: Member | None) -> None:
        if not self._is_time():
            return
        getattr(self, f"_{self._dice.choice(_KINDS)}")(member)

    def beats(self, member: Member) -> None:
        activity = None if member.last_beat is None else member.last_beat["activity"]
        if self._left > 0 and activity in _BUSY and self._dice.random() < self._rate / 4 and self._may_stall():
            self._left -= 1
            member.stuck = True
            self.cluster.tell(f"{member.name} is stuck {member.last_beat}")
            self.cluster.schedule.wait_for(lambda: False)

    def sends(self, member: Member, tag: Tag) -> None:
        """Members of a model in stages often die while a second vote ends, when some have heard what is agreed and others
        have not: mere chance seldom comes upon that."""
        if tag.phase == messages.DONE and self._left > 0 and self._dice.random() < _AT_THE_VOTE:
            self._die(member)

    def stores(self, verb: str) -> None:
        if self._refusals > 0 and (verb == "put" or self._out_of_reach):
            self._refusals -= 1
            raise OSError(5, "Input/output error") if self._out_of_reach else OSError(28, "No space left on device")
        if self._dice.random() < 0.1:
            self.cluster.schedule.sleep(self._dice.random())

    def _is_time(self) -> bool:
        if self._left <= 0:
            return False
        rate = self._rate
        if self._storm > 0:
            self._storm -= 1
            rate = 0.05
        if self._dice.random() >= rate:
            return False
        if self._storm == 0 and self._dice.random() < 0.4:
            self._storm = 60
        return True

    # ---- what happens

    def _die(self, member: Member | None) -> None:
        if member is not None and self._may_lose([member]):
            self._kill(member)

    def _die_other(self, member: Member | None) -> None:  # noqa: ARG002
        others = self.cluster.living()
        if others and self._may_lose([other := self._dice.choice(others)]):
            self._kill(other)

    def _all_die(self, member: Member | None) -> None:  # noqa: ARG002
        workers = [each for each in self.cluster.living("worker") if each.hubs]
        if workers and self._total_losses < 4 and self._may_lose(workers):
            self._total_losses += 1
            for worker in workers:
                self._kill(worker)

    def _stop(self, member: Member | None) -> None:
        others = self.cluster.living()
        victim = member or (self._dice.choice(others) if others else None)
        if victim is None or victim.stopped:
            return
        if self._dice.random() < 0.5:
            self._left -= 1
            seconds = self._dice.random() * 3
            self.cluster.tell(f"{victim.name} stops for {seconds:.1f} s")
            victim.stopped = True
            self.cluster.schedule.at(self.cluster.schedule.now + seconds, lambda: self._go_on(victim))
        elif victim.hubs and self._may_stall():
            self._left -= 1
            self.cluster.tell(f"{victim.name} stops")
            victim.stopped = True

    def _go_on(self, member: Member) -> None:
        member.stopped = False

    def _cut(self, member: Member | None) -> None:
        if member is None or not member.hubs or len(self.cluster.cut) >= 2 or not self._may_lose([member]):
            return
        peers = [each for each in self.cluster.living() if each.hubs and each is not member]
        if peers:
            peer = self._dice.choice(peers)
            pair = frozenset((member.number, peer.number))
            self.cluster.cut.add(pair)
            self.cluster.tell(f"{member.name} and {peer.name} lose contact")
            if self._dice.random() < 0.7:
                self.cluster.schedule.at(self.cluster.schedule.now + 0.2, lambda: self.cluster.cut.discard(pair))

    def _damage(self, member: Member | None) -> None:  # noqa: ARG002
        names = sorted(self.cluster.files.files)
        if not names:
            return
        self._left -= 1
        self.damaged = True
        name = self._dice.choice(names)
        data = self.cluster.files.files[name]
        how = self._dice.choice(["goes", "is cut", "is altered"])
        self.cluster.tell(f"{name} {how}")
        if how == "goes":
            del self.cluster.files.files[name]
        elif how == "is cut":
            self.cluster.files.files[name] = data[: self._dice.randrange(len(data))]
        else:
            at = self._dice.randrange(len(data))
            self.cluster.files.files[name] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    def _storage(self, member: Member | None) -> None:  # noqa: ARG002
        self._left -= 1
        self.storage_failed = True
        self._refusals = self._dice.choice([1, 2, 5, 1000])
        self._out_of_reach = self._refusals < 10 and self._dice.random() < 0.5
        self.cluster.tell(f"the storage refuses {self._refusals} times")

    def _signal(self, member: Member | None) -> None:  # noqa: ARG002
        if self._dice.random() < 0.5:
            self._left -= 1
            self.pending_signal.signal = self._dice.choice(["SIGTERM", "SIGINT"])
            self.cluster.tell(f"{self.pending_signal.signal}")

    def _crash(self, member: Member | None) -> None:
        if member is None:
            self._left -= 1
            self.cluster.tell("the driver dies")
            raise Crash

    def _pause(self, member: Member | None) -> None:
        if member is None:
            self._left -= 1
            self.cluster.tell("the driver stops for a while")
            self.cluster.schedule.sleep(self._dice.random() * 2 * STEP_TIMEOUT_S)

    def _trouble(self, member: Member | None) -> None:  # noqa: ARG002
        if self._dice.random() < 0.2:
            self._left -= 1
            self.trouble = "the raylet has ended"
            self.cluster.tell(self.trouble)

    def _idle_dies(self, member: Member | None) -> None:  # noqa: ARG002
        """One that takes no part: a spare, or one that prepares."""
        found = [each for each in self.cluster.living() if not each.hubs]
        if found and self._may_lose([found[0]]):
            self._kill(found[0])

    def _kill(self, member: Member) -> None:
        self._left -= 1
        self.cluster.kill(member, heard=self._dice.random() < 0.6)

    # ---- what a run has to bear

    def _may_fail_to_start(self) -> bool:
        self._early += 1
        return self._plan.wild or self._early <= 2

    def _may_lose(self, victims: Sequence[Member]) -> bool:
        if self._plan.wild:
            return True
        if any(not member.hubs for member in victims):
            return self._may_fail_to_start()
        self._move_window()
        if self._window >= 2:
            return False
        self._window += 1
        return True

    def _may_stall(self) -> bool:
        if self._plan.wild:
            return True
        self._move_window()
        if self._window >= 2 or self._window_stalls >= 1:
            return False
        self._window += 1
        self._window_stalls += 1
        return True

    def _move_window(self) -> None:
        """Faults are forgiven when all are past where anybody was at the last one."""
        steps = [steps_of(member.progress) for member in self.cluster.living("worker") if member.hubs]
        if steps and min(steps) > self._window_end:
            self._window = self._window_stalls = 0
        self._window_end = max([self._window_end, *(step + 1 for step in steps)])
