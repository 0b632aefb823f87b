"""A pipeline schedule as data: which shard each member takes forward or backward through its stage, in which order.

    hosts = ((0, 0, 1, 1), (2, 2, 2, 2))     # hosts[stage][shard] = rank: two members of stage 0, one of stage 1
    programs(hosts, "1f1b")[2]               # what rank 2 does in a step, in this order

Messages follow from the tasks: a forward hands its activation to `hosts[stage + 1][shard]`, a backward its gradient to
`hosts[stage - 1][shard]`; within a link both come in the order in which they are needed. The columns of a pipeline may be
ragged: stages have any numbers of members, and deal the shards among them as each likes, since sums are exact.

Programs are made by playing the step in virtual time, so no order can deadlock: whatever waits, waits for something that
happened earlier in the play. A forward costs 1 there and a backward 2, whatever the stages really cost, so that programs are a
function of hosts and order alone, on each member the same.

There is no interleaving (several stages on one member): such schedules break the order within a link.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from orchestrator.comm.pipeline_schedules.orders import Decide, Order, PipelinePosition, build_order

Hosts = tuple[tuple[int, ...], ...]  # hosts[stage][shard] = rank
Kind = Literal["forward", "backward"]


class Task(NamedTuple):
    kind: Kind
    stage: int
    shard: int


Programs = tuple[tuple[Task, ...], ...]  # by rank

COSTS: Mapping[Kind, int] = {"forward": 1, "backward": 2}


def programs(hosts: Hosts, order: str, options: Mapping[str, Any] | None = None) -> Programs:
    """The tasks of each rank in a step, in the order of execution; one program for each rank up to the highest one.

    Raises ConfigurationError for an unknown order, ValueError for hosts that are none or an order in which nobody can go on.
    """
    return play(hosts, build_order(order, options or {}))


def play(hosts: Hosts, decide: Decide) -> Programs:
    """As `programs`. decide: the order, as a function of a member's place."""
    stage_of = stages_of(hosts)
    members = [_Member(decide(place), place.hosted) for place in _places(hosts, stage_of)]
    for shard, rank in enumerate(hosts[0] if hosts else ()):
        members[rank].give(Task("forward", 0, shard), 0)
    for _ in range(2 * sum(map(len, hosts))):
        starts = [(start, rank) for rank, member in enumerate(members) if (start := member.next_start()) is not None]
        if not starts:
            raise ValueError("no task can start: an order must let each stage have a shard in flight")
        _, rank = min(starts)
        task, end = members[rank].take()
        following = next_task(task, len(hosts))
        if following is not None:
            members[hosts[following.stage][task.shard]].give(following, end)
    return tuple(tuple(member.done) for member in members)


def next_task(task: Task, stages: int) -> Task | None:
    """The task that needs what this one hands over; None after the last."""
    kind, stage, shard = task
    if kind == "forward":
        return Task("forward", stage + 1, shard) if stage + 1 < stages else Task("backward", stage, shard)
    return Task("backward", stage - 1, shard) if stage else None


def needs(task: Task, stages: int) -> Task | None:
    """The task whose result this one needs, besides a backward's own forward; None for the first."""
    kind, stage, shard = task
    if kind == "forward":
        return Task("forward", stage - 1, shard) if stage else None
    return Task("backward", stage + 1, shard) if stage + 1 < stages else Task("forward", stage, shard)


def in_causal_order(hosts: Hosts, programs: Programs) -> Iterator[tuple[int, Task, Task | None]]:
    """All tasks in an order in which they can run: each with its rank, and with the task whose result it needs. Raises
    ValueError where programs wait for each other for ever."""
    done: set[Task] = set()
    left = [deque(program) for program in programs]
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(left):
            while program and ((needed := needs(program[0], len(hosts))) is None or needed in done):
                moved = True
                done.add(program[0])
                yield rank, program.popleft(), needed
    if stuck := [rank for rank, program in enumerate(left) if program]:
        raise ValueError(f"ranks {stuck} wait for each other for ever")


def stages_of(hosts: Hosts) -> dict[int, int]:
    """Rank -> its stage. Raises ValueError for hosts of unequal numbers of shards, and for a rank in two stages."""
    found: dict[int, int] = {}
    for stage, ranks in enumerate(hosts):
        if len(ranks) != len(hosts[0]):
            raise ValueError(f"stage {stage} has hosts for {len(ranks)} shards, stage 0 for {len(hosts[0])}")
        for rank in ranks:
            if rank < 0 or found.setdefault(rank, stage) != stage:
                raise ValueError(
                    f"rank {rank} is to host stages {found.get(rank)} and {stage}; a member hosts one stage"
                )
    return found


def groups_of(hosts: Hosts) -> tuple[tuple[int, ...], ...]:
    """For each stage the ranks that host it, in ascending order: those who add up its gradient."""
    return tuple(tuple(sorted(set(ranks))) for ranks in hosts)


def _places(hosts: Hosts, stage_of: Mapping[int, int]) -> Iterator[PipelinePosition]:
    """By rank; one that hosts nothing stands in the first stage."""
    for rank in range(max(stage_of, default=-1) + 1):
        stage = stage_of.get(rank, 0)
        yield PipelinePosition(stage, len(hosts), hosts[stage].count(rank))


@dataclass
class _Member:
    """One rank in virtual time. Tasks of a kind are done in the order in which they came, so links keep their order."""

    order: Order  # in which it does its tasks
    hosted: int  # shards that it hosts
    free: int = 0  # since when it is
    # a heap of (since when it can start, shard, task)
    forwards: list[tuple[int, int, Task]] = field(default_factory=list)
    backwards: list[tuple[int, int, Task]] = field(default_factory=list)  # likewise
    in_flight: int = 0  # forwards done whose backwards are not
    forwarded: int = 0  # forwards done
    done: list[Task] = field(default_factory=list)  # in the order in which they were

    def give(self, task: Task, ready: int) -> None:
        heapq.heappush(self._queue(task.kind), (ready, task.shard, task))

    def next_start(self) -> int | None:
        chosen = self._chosen()
        return None if chosen is None else max(chosen[0][0], self.free)

    def take(self) -> tuple[Task, int]:
        """Do the next task; returns it with the time of its end."""
        chosen = self._chosen()
        assert chosen is not None
        ready, _, task = heapq.heappop(chosen)
        self.free = max(ready, self.free) + COSTS[task.kind]
        self.in_flight += 1 if task.kind == "forward" else -1
        self.forwarded += task.kind == "forward"
        self.done.append(task)
        return task, self.free

    def _queue(self, kind: Kind) -> list[tuple[int, int, Task]]:
        return self.forwards if kind == "forward" else self.backwards

    def _chosen(self) -> list[tuple[int, int, Task]] | None:
        """The queue whose first task comes next: what can start first, a backward before a forward."""
        able = []
        if self.backwards and self.forwarded >= min(self.order.warmup, self.hosted):
            able.append(self.backwards)
        if self.forwards and self.in_flight < self.order.in_flight:
            able.append(self.forwards)
        return min(able, key=lambda queue: max(queue[0][0], self.free), default=None)
