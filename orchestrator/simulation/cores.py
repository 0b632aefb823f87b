"""One lockstep step of members that share the cores of a machine, or have one each: task by task, in virtual time.

A worker computes its shards one after the other, takes its part in the vote and in the sum, message by message in the order of
its program (`topologies.schedule.program`), and updates. Each of these tasks needs a core, and whoever could begin first gets
the next free one. A message leaves when it was handed over, goes out and comes in at the bandwidth of its ends, and is there a
latency later; who takes it has taken those before it. What the processes do beside (their other threads, the driver) takes what
is left of the cores, and more only where that is not enough.

A vote goes the whole way of one chunk, through a ring one member after the other. With small models that costs more than the
sum, so it is played too; and eight workers on two cores make each message wait for a core.

Source: list scheduling, Graham, "Bounds on multiprocessing timing anomalies" (1969); messages as in `exchange.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from orchestrator.simulation.conditions import Conditions
from orchestrator.topologies import Schedule
from orchestrator.topologies.schedule import Finish, Send, program

MOST_MEMBERS = 64  # more take long to play
_VOTE_BYTES = 1024.0


class _Task(NamedTuple):
    """cost_s: of a core; sends, takes: the message (source, target, number) that leaves with its end, or that it waits for."""

    cost_s: float
    sends: tuple[int, int, int] | None = None
    takes: tuple[int, int, int] | None = None
    size: float = 0.0


@dataclass(frozen=True)
class Played:
    """seconds: of the step; busy_s: processor time of all members, and workers_s that of the workers' computing threads;
    messages: that workers hand over and take."""

    seconds: float
    busy_s: float
    workers_s: float
    messages: int


def play_step(
    schedule: Schedule,
    computing: Sequence[float],
    sizes: tuple[float, float],
    conditions: Conditions,
    *,
    shards: int = 1,
) -> Played:
    """computing: seconds of each worker's micro-batches; sizes: bytes of the whole vector, as sums and as results; shards: of
    the worker that has most, between which others get the core."""
    programs = _programs(schedule, computing, sizes, conditions, shards)
    seconds = _Cores(programs, conditions).run()
    busy = sum(task.cost_s for tasks in programs for task in tasks)
    beside = conditions.background_s * schedule.workers
    if conditions.cores:
        idle = conditions.cores * seconds - busy
        seconds += max(0.0, beside - idle) / conditions.cores
    of_workers = [task for tasks in programs[: schedule.workers] for task in tasks]
    messages = sum(task.sends is not None or task.takes is not None for task in of_workers)
    return Played(seconds, busy + beside, sum(task.cost_s for task in of_workers), messages)


def messages_of(schedule: Schedule) -> int:
    """Handed over and taken in a step by all workers together: of the vote and of the sum."""
    return play_step(schedule, [0.0] * schedule.workers, (0.0, 0.0), Conditions()).messages


def _programs(
    schedule: Schedule, computing: Sequence[float], sizes: tuple[float, float], conditions: Conditions, shards: int
) -> list[list[_Task]]:
    network, chunks = conditions.network, max(1, schedule.chunks)
    voting = range(schedule.chunks) if schedule.servers else [0]
    programs: list[list[_Task]] = []
    for rank in range(schedule.members):
        tasks = []
        if rank < schedule.workers:
            tasks += [_Task(computing[rank] / shards)] * shards
        if schedule.members > 1:
            for phase, only in enumerate((voting, range(schedule.chunks))):
                for action in program(schedule, rank, only=only):
                    number = phase * chunks + action.chunk
                    up, down = (size / chunks for size in sizes) if phase else (_VOTE_BYTES, _VOTE_BYTES)
                    if isinstance(action, Send):
                        size = up if action.region != "result" else down
                        tasks.append(_Task(network.message_s, sends=(rank, action.peer, number), size=size))
                    elif isinstance(action, Finish):
                        tasks.append(_Task(up * network.byte_s))
                    else:
                        cost = network.message_s + up * network.byte_s
                        tasks.append(_Task(cost, takes=(action.peer, rank, number)))
        if rank < schedule.workers:
            tasks.append(_Task(conditions.update_s))
        programs.append(tasks)
    return programs


@dataclass
class _Cores:
    """Plays programs; of several messages between two members with one number the first sent is the first taken."""

    programs: list[list[_Task]]
    conditions: Conditions
    came: dict[tuple[int, int, int], list[float]] = field(default_factory=dict)
    waiting: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def run(self) -> float:
        members = len(self.programs)
        free = [0.0] * (self.conditions.cores or members)
        self.out, self.into = [0.0] * members, [0.0] * members
        self.at, self.ready = [0] * members, [0.0] * members
        self.numbered = 0
        self.queue: list[tuple[float, int, int | _Task]] = []  # a member that could go on, or a message that leaves
        for member in range(members):
            if self.programs[member]:
                self._later(0.0, member)
        end = 0.0
        while self.queue:
            now, _, what = heapq.heappop(self.queue)
            if isinstance(what, _Task):
                self._arrive(what, now)
                continue
            task = self.programs[what][self.at[what]]
            done = max(now, heapq.heappop(free)) + task.cost_s
            heapq.heappush(free, done)
            end = max(end, done)
            self.ready[what] = done
            self.at[what] += 1
            if task.sends is not None:
                left = max(done, self.out[task.sends[0]])
                self.out[task.sends[0]] = left + task.size / self.conditions.network.bandwidth
                self._later(left, task)
            self._next(what)
        return end

    def _later(self, time: float, what: int | _Task) -> None:
        self.numbered += 1
        heapq.heappush(self.queue, (time, self.numbered, what))

    def _next(self, member: int) -> None:
        if self.at[member] == len(self.programs[member]):
            return
        takes = self.programs[member][self.at[member]].takes
        if takes is None:
            self._later(self.ready[member], member)
        elif self.came.get(takes):
            self._later(max(self.ready[member], self.came[takes].pop(0)), member)
        else:
            self.waiting[takes] = member

    def _arrive(self, task: _Task, left: float) -> None:
        """What leaves first comes in first."""
        assert task.sends is not None
        network, target = self.conditions.network, task.sends[1]
        arrival = max(left + network.latency_s, self.into[target]) + task.size / network.bandwidth
        self.into[target] = arrival
        member = self.waiting.pop(task.sends, None)
        if member is None:
            self.came.setdefault(task.sends, []).append(arrival)
        else:
            self._later(max(self.ready[member], arrival), member)
