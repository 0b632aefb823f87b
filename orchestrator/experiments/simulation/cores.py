"""Lockstep steps of members that share the cores of a machine, or have one each: task by task, in virtual time.

A worker computes its shards one after the other, takes its part in the vote and in the sum, message by message in the order of
its program (`comm.topologies.schedule.program`), updates, and goes on with the next step. Each of these tasks needs a core, and
whoever could begin first gets the next free one. A message leaves when it was handed over, goes out and comes in at the
bandwidth of its ends, and is there a latency later; who takes it has taken those before it.

Where cores are shared, what goes on beside has tasks of its own, which wait for a core like all others, and which others wait
for: each worker's process has something to do after a step (its reports, threads of Ray), and the driver with Ray's processes
takes a share of a core all the time. Where there are more workers than cores, each finds the caches of its core used by
another in every step, which costs processor time too.

A vote goes the whole way of one chunk, through a ring one member after the other. With small models that costs more than the
sum, so it is played too; and eight workers on two cores make each message wait for a core.

Source: list scheduling, Graham, "Bounds on multiprocessing timing anomalies" (1969); messages as in `exchange.py`; what a
change of process costs beyond the change itself: Li, Ding and Shen, "Quantifying the cost of context switch" (2007).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, repeat
from typing import NamedTuple

from orchestrator.comm.topologies import Schedule
from orchestrator.comm.topologies.schedule import Finish, Send, program
from orchestrator.experiments.simulation.conditions import Conditions

MOST_MEMBERS = 64  # more take long to play
_VOTE_BYTES = 1024.0
_STEPS = 8  # alike, of which the first finds no work of an earlier one and does not count
_PIECES = 4  # in a step, of what the driver and Ray do

_Message = tuple[int, int, int]  # source, target, and its phase and chunk


class _Task(NamedTuple):
    """cost_s: of a core; sends, takes: the message that leaves with its end, or that it waits for; ends: a worker's step."""

    cost_s: float
    sends: _Message | None = None
    takes: _Message | None = None
    size: float = 0.0
    ends: bool = False


@dataclass(frozen=True)
class SimulatedStep:
    """seconds: of a step; busy_s: processor time of all members in it, and workers_s that of the workers' computing threads;
    messages: that workers hand over and take in it."""

    seconds: float
    busy_s: float
    workers_s: float
    messages: int


def simulate_step(
    schedule: Schedule,
    computing: Sequence[float],
    sizes: tuple[float, float],
    conditions: Conditions,
    *,
    shards: int = 1,
) -> SimulatedStep:
    """One of many steps that are alike. computing: seconds of each worker's micro-batches; sizes: bytes of the whole vector, as
    sums and as results; shards: of the worker that has most, between which others get the core."""
    steps = _Steps(schedule, sizes, conditions, shards)
    ends = _Cores(steps, [computing] * _STEPS).run()
    programs = [[*steps.computing(rank, computing), *steps.others(rank)] for rank in range(schedule.members)]
    costs = [sum(task.cost_s for task in tasks) for tasks in programs]
    beside = conditions.background_s * schedule.workers
    return SimulatedStep(
        seconds=(ends[-1] - ends[0]) / (_STEPS - 1),
        busy_s=sum(costs) + beside,
        workers_s=sum(costs[: schedule.workers]),
        messages=_messages(programs[: schedule.workers]),
    )


def play_steps(
    schedule: Schedule,
    rows: Sequence[Sequence[float]],
    sizes: tuple[float, float],
    conditions: Conditions,
    *,
    shards: int = 1,
) -> list[float]:
    """Seconds of each step, one after the other: from the end of the step before, at the slowest worker, to its own. rows: of
    each step, as `computing` of `simulate_step`."""
    ends = _Cores(_Steps(schedule, sizes, conditions, shards), rows).run()
    return [end - before for before, end in zip([0.0, *ends], ends, strict=False)]


def messages_of(schedule: Schedule) -> int:
    """Handed over and taken in a step by all workers together: of the vote and of the sum."""
    steps = _Steps(schedule, (0.0, 0.0), Conditions(), 1)
    return _messages([steps.others(rank) for rank in range(schedule.workers)])


def _messages(programs: Sequence[Sequence[_Task]]) -> int:
    return sum(task.sends is not None or task.takes is not None for tasks in programs for task in tasks)


@dataclass(frozen=True)
class _Steps:
    """What each member does in a step."""

    schedule: Schedule
    sizes: tuple[float, float]
    conditions: Conditions
    shards: int

    def computing(self, rank: int, seconds: Sequence[float]) -> list[_Task]:
        if rank >= self.schedule.workers:
            return []
        each = seconds[rank] / self.shards
        return [_Task(each + self._cold_s), *repeat(_Task(each), self.shards - 1)]

    def others(self, rank: int) -> list[_Task]:
        """The vote, the sum and the rest of a worker's step."""
        schedule, conditions = self.schedule, self.conditions
        tasks: list[_Task] = []
        if schedule.members > 1:
            tasks += [_Task(conditions.vote_s), *self._exchange(rank)]
        if rank < schedule.workers:
            tasks.append(_Task(conditions.update_s * conditions.slowed(schedule.workers), ends=True))
        return tasks

    def least_s(self, computing: Sequence[float]) -> float:
        """Of a step, for what a member and what the cores have to do in it."""
        costs = [
            sum(task.cost_s for task in (*self.computing(rank, computing), *self.others(rank)))
            for rank in range(self.schedule.members)
        ]
        return max(*costs, sum(costs) / (self.conditions.cores or len(costs)))

    @property
    def _cold_s(self) -> float:
        return self.conditions.switch_s if 0 < self.conditions.cores < self.schedule.workers else 0.0

    def _exchange(self, rank: int) -> Iterator[_Task]:
        schedule, network = self.schedule, self.conditions.network
        chunks = max(1, schedule.chunks)
        voting = range(schedule.chunks) if schedule.servers else [0]
        for phase, only in enumerate((voting, range(schedule.chunks))):
            up, down = (size / chunks for size in self.sizes) if phase else (_VOTE_BYTES, _VOTE_BYTES)
            for action in program(schedule, rank, only=only):
                number = phase * chunks + action.chunk
                if isinstance(action, Send):
                    size = up if action.region != "result" else down
                    yield _Task(network.message_s, sends=(rank, action.peer, number), size=size)
                elif isinstance(action, Finish):
                    yield _Task(up * network.byte_s)
                else:
                    yield _Task(network.message_s + up * network.byte_s, takes=(action.peer, rank, number))


@dataclass(frozen=True)
class _Beside:
    """What takes a core once, whoever it is for; every_s: and again after so long, 0 for not."""

    cost_s: float
    every_s: float = 0.0


@dataclass
class _Cores:
    """Plays steps; of several messages between two members with one number the first sent is the first taken. rows: of each
    step the seconds that each worker computes."""

    steps: _Steps
    rows: Sequence[Sequence[float]]
    came: dict[_Message, list[float]] = field(default_factory=dict)
    waiting: dict[_Message, int] = field(default_factory=dict)

    def run(self) -> list[float]:
        """When the last worker has done each step."""
        conditions, schedule = self.steps.conditions, self.steps.schedule
        self.free = [0.0] * (conditions.cores or schedule.members)
        self.out, self.into = [0.0] * schedule.members, [0.0] * schedule.members
        self.numbered = count()
        self.queue: list[
            tuple[float, int, int | _Task | _Beside]
        ] = []  # a member goes on, a message leaves, another begins
        self.programs = [self._program(rank) for rank in range(schedule.members)]
        self.now: list[_Task | None] = [None] * schedule.members  # the task that each member is at, or waits to begin
        self.ready = [0.0] * schedule.members
        for member in range(schedule.members):
            self._go_on(member)
        every_s = self.steps.least_s(self.rows[0]) / _PIECES
        if conditions.cores and conditions.others and every_s:
            self._later(0.0, _Beside(conditions.others * every_s, every_s))
        done_by, left = [0] * schedule.members, [schedule.workers] * len(self.rows)
        ends = [0.0] * len(self.rows)
        while left[-1]:
            time, _, what = heapq.heappop(self.queue)
            if isinstance(what, _Task):
                self._arrive(what, time)
            elif isinstance(what, _Beside):
                self._take_core(time, what.cost_s)
                if what.every_s:
                    self._later(time + what.every_s, what)
            elif self._run(what, time):
                step = done_by[what]
                ends[step] = max(ends[step], self.ready[what])
                left[step] -= 1
                done_by[what] += 1
        return ends

    def _program(self, rank: int) -> Iterator[_Task]:
        others = self.steps.others(rank)
        return chain.from_iterable((*self.steps.computing(rank, row), *others) for row in self.rows)

    def _later(self, time: float, what: int | _Task | _Beside) -> None:
        heapq.heappush(self.queue, (time, next(self.numbered), what))

    def _take_core(self, time: float, cost_s: float) -> float:
        """The first that is free; returns when it is free again."""
        done = max(time, heapq.heappop(self.free)) + cost_s
        heapq.heappush(self.free, done)
        return done

    def _run(self, member: int, time: float) -> bool:
        """The member's task; returns whether its step has ended."""
        task, conditions = self.now[member], self.steps.conditions
        assert task is not None
        done = self.ready[member] = self._take_core(time, task.cost_s)
        if task.sends is not None:
            left = max(done, self.out[member])
            self.out[member] = left + task.size / conditions.network.bandwidth
            self._later(left, task)
        if task.ends and conditions.cores and conditions.background_s:
            self._later(done, _Beside(conditions.background_s))
        self._go_on(member)
        return task.ends

    def _go_on(self, member: int) -> None:
        task = self.now[member] = next(self.programs[member], None)
        if task is None:
            return
        if task.takes is None:
            self._later(self.ready[member], member)
        elif self.came.get(task.takes):
            self._later(max(self.ready[member], self.came[task.takes].pop(0)), member)
        else:
            self.waiting[task.takes] = member

    def _arrive(self, task: _Task, left: float) -> None:
        """What leaves first comes in first."""
        assert task.sends is not None
        network, target = self.steps.conditions.network, task.sends[1]
        arrival = max(left + network.latency_s, self.into[target]) + task.size / network.bandwidth
        self.into[target] = arrival
        member = self.waiting.pop(task.sends, None)
        if member is None:
            self.came.setdefault(task.sends, []).append(arrival)
        else:
            self._later(max(self.ready[member], arrival), member)
