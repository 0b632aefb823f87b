"""Many members in the virtual cluster, with all their messages written down, to be held against what `simulate` plays.

The engine, the controller and the driver are the true ones, as in `runs.py`. Turns are given in another way, by which
a thousand members take less than two minutes of a processor: a member is looked at where something has happened to it.
"""

from __future__ import annotations

import functools
import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from orchestrator.comm.transports.base import Received, Tag
from orchestrator.config.settings import Settings, Workers
from orchestrator.worker import footprint
from tests.comm.transports.memory import _State
from tests.virtual_cluster import cluster, runs, scheduling
from tests.virtual_cluster.plans import Chance, Plan, calm
from tests.virtual_cluster.runs import Run, Told
from tests.worker import pipelines
from tests.worker.runs import ONE, Layout, settings_for

STEPS = 3
_LONG_S = 1e6  # of virtual time, in which nobody is too late
_TURN_S = 1e-6
_SOON_S = 0.02


class Act(NamedTuple):
    """An act of a member: it handed a message to a peer, or took one."""

    sends: bool
    peer: int
    chunk: int


class Call(NamedTuple):
    """A collective call of one generation."""

    generation: int
    step: int
    attempt: int
    phase: int


@dataclass
class Traffic:
    """All messages of a run. acts: of each call and rank, in the order of that member; order: of all members together."""

    acts: dict[Call, dict[int, list[Act]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    order: dict[Call, list[tuple[int, Act]]] = field(default_factory=lambda: defaultdict(list))

    def note(self, rank: int, tag: Tag, peer: int, *, sends: bool) -> None:
        call, act = Call(tag.generation, tag.step, tag.attempt, tag.phase), Act(sends, peer, tag.chunk)
        self.acts[call][rank].append(act)
        self.order[call].append((rank, act))

    def seconds(self, call: Call, message_s: float, latency_s: float) -> float:
        """The length of this call, if all begin at once, by each member's clock: handing over and taking cost `message_s`."""
        clocks, flying = defaultdict[int, float](float), defaultdict[tuple[int, int, int], list[float]](list)
        for rank, act in self.order[call]:
            if act.sends:
                clocks[rank] += message_s
                flying[rank, act.peer, act.chunk].append(clocks[rank] + latency_s)
            else:
                clocks[rank] = max(clocks[rank], flying[act.peer, rank, act.chunk].pop(0)) + message_s
        return max(clocks.values())


class Taking(scheduling.Schedule):
    """Turns are drawn from the tasks of those to whom something has happened, then the driver has one. All tasks are
    looked at only where nobody can go on, since there are thousands. All that is due soon is done at once, for that reason."""

    def __init__(self, dice: Random, haste: float = 0.0) -> None:
        super().__init__(dice, haste)
        self._able: list[scheduling.Task] = []  # some that may go on
        self._of: dict[scheduling.Process, list[scheduling.Task]] = defaultdict(list)

    def spawn(self, act: Callable[[], Any], process: scheduling.Process, name: str = "") -> None:
        super().spawn(act, process, name)
        self._of[process].append(self._tasks[-1])
        self._able.append(self._tasks[-1])

    def touch(self, process: scheduling.Process) -> None:
        self._of[process] = [task for task in self._of[process] if not task.done]
        self._able += self._of[process]

    def _following(self) -> scheduling.Task:
        self._turns += 1
        self.now += _TURN_S
        while self._fault is None:
            while self._timers and self._timers[0][0] <= self.now:
                heapq.heappop(self._timers)[2]()
            while self._able:
                place = self.dice.randrange(len(self._able))
                self._able[place], self._able[-1] = self._able[-1], self._able[place]
                task = self._able.pop()
                if not task.done and task.can_go_on(self.now):
                    return task
            if self._main.can_go_on(self.now):
                return self._main
            self._able = [task for task in self._tasks if task.can_go_on(self.now)]
            if not self._able:
                self._let_time_pass()
                self.now += _SOON_S
        return self._main


@dataclass
class Many:
    """A run of so many workers, of whom some are killed at once in its second step. traffic: of the whole run; members: by the
    number of the generation; told: how the run went."""

    workers: int
    topology: str
    lost: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    members: dict[int, int] = field(default_factory=dict)
    told: Told | None = None

    def live(self, folder: Path) -> Told:
        with self._doubles():
            run = Run(self._plan, folder)
            run._cluster.misfortune = run._chance = _Killing(self._plan, self)
            run._chance.cluster = run._cluster
            run._cluster._late = lambda most_s: 0.0 * most_s  # type: ignore[method-assign]
            self.told = run.live()
        self.members = {number: len(present) for number, (_, present) in run._cluster.generations.items()}
        return self.told

    @property
    def _plan(self) -> Plan:
        return replace(calm("plain", ONE), seed=self.workers, layouts=(self._settings,), haste=1.0)

    @property
    def _settings(self) -> Settings:
        few: dict[str, Any] = {"steps": STEPS, "shards": self.workers, "batch_size": self.workers}
        plain = settings_for(pipelines.Mlp, Layout(self.workers, self.topology), args={"held_out": None}, **few)
        workers = Workers.parse({"min": self.workers - self.lost, "max": self.workers})
        times: dict[str, Any] = dict.fromkeys(("step_timeout_s", "start_timeout_s"), _LONG_S)
        return replace(plain, cluster=replace(plain.cluster, workers=workers, **times))

    @contextmanager
    def _doubles(self) -> Iterator[None]:
        traffic = self.traffic

        class Noted(cluster.Wire):
            def send(self, peer: int, tag: Tag, payload: torch.Tensor, note: int = 0, *, done: bool = False) -> None:
                super().send(peer, tag, payload, note, done=done)
                self._cluster.schedule.touch(self._present[peer])
                traffic.note(self._inner._rank, tag, peer, sends=True)

            def receive(self, peer: int, tag: Tag, timeout_s: float) -> Received:
                inbox, states = self._inner._inboxes[peer], self._inner._hub.states
                here = _State.HERE
                self._cluster.schedule.wait_for(
                    lambda: bool(inbox) or any(states[each] is not here for each in self._peers) or self._ended(),
                    timeout_s,
                )
                received = super().receive(peer, tag, timeout_s)
                traffic.note(self._inner._rank, tag, peer, sends=False)
                return received

            def _ended(self) -> bool:
                return self._inner._hub.states[self._inner._rank] is not _State.HERE

        with (
            patch.object(cluster, "Wire", Noted),
            patch.object(runs, "Schedule", Taking),
            patch.object(scheduling, "MOST_TURNS", 10**9),
            patch.object(
                footprint, "region_bytes", functools.cache(footprint.region_bytes)
            ),  # all members are one process
        ):
            yield


class _Killing(Chance):
    """Kills the last workers once one of them computes in the second step."""

    def __init__(self, drawn: Plan, many: Many) -> None:
        super().__init__(drawn)
        self._many = many
        self._killed = False

    def beats(self, member: cluster.Member) -> None:
        beat = member.last_beat
        if self._killed or not self._many.lost or beat is None or beat["step"] != 1 or beat["activity"] != "compute":
            return
        self._killed = True
        for each in [each for each in self.cluster.living("worker") if each.hubs][-self._many.lost :]:
            self.cluster.kill(each)
