"""Members that do one task after the other, and the messages between them, as a discrete-event simulation.

A task needs a core: its member's own or, where cores are shared, the next free one, which whoever could begin first gets. A
message leaves when it was handed over; it goes out and comes in at the bandwidth of its ends, one message after the other,
and is there a latency later. A message of no size goes between the packets of others. Between two hosts the ends are the
hosts'. The member that takes it has done all that comes before in its program, even if another message has come earlier, as
true members do (`comm.collectives.Exchange`).

Source: the linear cost of a message, Hockney, "The communication challenge for MPP" (1994); list scheduling, Graham, "Bounds on
multiprocessing timing anomalies" (1969).
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from orchestrator.comm.topologies import Move, Schedule
from orchestrator.experiments.simulation.conditions import Conditions, Network

Link = tuple[int, int]  # source, target


class Task(NamedTuple):
    """A task of a member. cost_s: of a core; sends, takes: the message that leaves with its end, or that it waits for; ends: a
    worker's step."""

    cost_s: float
    sends: Move | None = None
    takes: Move | None = None
    size: float = 0.0
    ends: bool = False


class Flight(NamedTuple):
    """A message in virtual time, for a picture: from `left` to `came`."""

    move: Move
    left: float
    came: float


def messages(schedule: Schedule, rank: int, sizes: Mapping[str, float], network: Network) -> Iterator[Task]:
    """The messages that a member hands over and takes, in the order of its program (`comm.topologies.schedule.program`). A
    sum is finished in one pass with its last addition. sizes: bytes of a chunk by the kind of its move."""
    takes: list[Task] = []  # of a round, in which it sends first
    now = 0
    for number, move in schedule.moves_of(rank):
        if number != now:
            yield from takes
            takes.clear()
            now = number
        size = sizes[move.kind]
        if move.source == rank:
            yield Task(network.message_s, move, None, size)
        else:
            takes.append(Task(network.message_s + size * network.byte_s, None, move))
    yield from takes


class Simulation:
    """The first sent of several alike messages is the first taken."""

    def __init__(self, programs: Sequence[Iterator[Task]], conditions: Conditions, nodes: Sequence[int]) -> None:
        """programs: of each member; nodes: the host of each."""
        members = len(programs)
        self.ready = [0.0] * members  # when each member has done its last task
        self.ends: list[list[float]] = [[] for _ in programs]  # of each member's steps
        self.busy_s = 0.0  # seconds of a core that all members' tasks took
        self.links = defaultdict[Link, float](float)  # bytes over each
        self.flights: list[Flight] = []  # of all messages, where they are asked for
        self._programs, self._conditions, self._nodes = programs, conditions, nodes
        self._now = [next(program, None) for program in programs]  # the task that each is at, or waits to begin
        self._going = sum(task is not None for task in self._now)
        self._free = [0.0] * conditions.cores  # when each of the shared cores is free again
        ends = members + conditions.network.hosts  # of messages: the members, and then the hosts
        self._out, self._into = [0.0] * ends, [0.0] * ends
        self._came: dict[Move, list[float]] = {}
        self._waiting: dict[Move, int] = {}
        self._queue: list[tuple[float, int, Callable[..., object], Any]] = []
        self._numbered = count()
        self._seen = False

    def run(self, *, every_s: float = 0.0, seen: bool = False) -> None:
        """Let all members do their tasks. every_s: after which what takes a share of the cores all the time takes its part
        again; seen: keep the flights."""
        self._seen = seen
        for member in range(len(self._programs)):
            self._go_on(member)
        if self._free and self._conditions.others and every_s:
            self._later(0.0, Simulation._others, every_s)
        while self._going:
            time, _, what, whose = heapq.heappop(self._queue)
            what(self, time, whose)

    def _later(self, time: float, what: Callable[..., object], whose: Any) -> None:
        heapq.heappush(self._queue, (time, next(self._numbered), what, whose))

    def _go_on(self, member: int) -> None:
        """Until it waits for a message, or for a core that others may get."""
        while (task := self._now[member]) is not None:
            if task.takes is not None and not self._has_taken(member, task.takes):
                return
            if self._free:
                self._later(self.ready[member], Simulation._on_core, member)
                return
            self._do(member, task, self.ready[member] + task.cost_s)

    def _has_taken(self, member: int, move: Move) -> bool:
        """Whether the message has come; else the member is woken by it."""
        came = self._came.get(move)
        if came is None:
            self._waiting[move] = member
            return False
        self.ready[member] = max(self.ready[member], came.pop(0))
        if not came:
            del self._came[move]
        return True

    def _on_core(self, time: float, member: int) -> None:
        task = self._now[member]
        assert task is not None
        self._do(member, task, self._take_core(time, task.cost_s))
        self._go_on(member)

    def _take_core(self, time: float, cost_s: float) -> float:
        """The first that is free; returns when it is free again."""
        done = max(time, heapq.heappop(self._free)) + cost_s
        heapq.heappush(self._free, done)
        return done

    def _do(self, member: int, task: Task, done: float) -> None:
        self.ready[member] = done
        self.busy_s += task.cost_s
        if (move := task.sends) is not None:
            if self._nodes[move.source] == self._nodes[move.target]:
                self._leave(done, task)
            else:  # another member of the host may be earlier at its wire
                self._later(done, Simulation._leave, task)
        if task.ends:
            self.ends[member].append(done)
            if self._free and self._conditions.background_s:
                self._later(done, Simulation._take_core, self._conditions.background_s)
        self._now[member] = next(self._programs[member], None)
        self._going -= self._now[member] is None

    def _others(self, time: float, every_s: float) -> None:
        self._take_core(time, self._conditions.others * every_s)
        self._later(time + every_s, Simulation._others, every_s)

    def _leave(self, time: float, task: Task) -> None:
        move = task.sends
        assert move is not None
        out, _, _, bandwidth = self._way(move)
        left = time
        if task.size:
            left = max(time, self._out[out])
            self._out[out] = left + task.size / bandwidth
        self.links[move.source, move.target] += task.size
        self._later(left, Simulation._come, task)

    def _come(self, left: float, task: Task) -> None:
        """The first message to leave is the first to come in."""
        move = task.sends
        assert move is not None
        _, into, latency_s, bandwidth = self._way(move)
        came = left + latency_s
        if task.size:
            came = self._into[into] = max(came, self._into[into]) + task.size / bandwidth
        if self._seen:
            self.flights.append(Flight(move, left, came))
        self._came.setdefault(move, []).append(came)
        member = self._waiting.pop(move, None)
        if member is not None:
            self._go_on(member)

    def _way(self, move: Move) -> tuple[int, int, float, float]:
        """Its end at the source and at the target, its latency and its bandwidth."""
        network, members = self._conditions.network, len(self._programs)
        source, target = self._nodes[move.source], self._nodes[move.target]
        if source == target:
            return move.source, move.target, network.latency_s, network.bandwidth
        return members + source, members + target, network.wire_latency_s, network.wire_bandwidth
