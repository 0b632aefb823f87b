"""The laws that the programs of every order obey. Tests check the orders of the table, and a launch checks a user's own.

    complete     each shard goes forward and then backward through each stage, once, on its host
    in order     what comes over a link comes in the order in which its receiver needs it
    no deadlock  every member reaches the end of its program, with every message received
    bounded      no member has more shards in flight than the order lets it have

Programs are played here by members that know nothing of each other and of time: they only receive, compute and send.

Only the hosts that are asked about are looked at.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from orchestrator.comm.pipeline_schedules.flow import Hosts, Programs, Task, play, stages_of
from orchestrator.comm.pipeline_schedules.orders import PIPELINING, Order, PipelinePosition, build_order


def problems(name: str, options: Mapping[str, Any], several: Iterable[Hosts]) -> list[str]:
    """The first law that an order of the user's project breaks for these hosts, as a sentence; none if it keeps all."""
    for hosts in several:
        members = " + ".join(str(len(set(ranks))) for ranks in hosts)
        named = f"{name} with stages of {members} members and {len(hosts[0])} shards"
        if found := PIPELINING.judge(named, partial(_built_broken, hosts, name, options)):
            return found
    return []


def broken(hosts: Hosts, programs: Programs) -> str | None:
    """The law that programs break, as a predicate; None where they keep to all but the last, which needs the order."""
    return Interpreter(hosts, programs).run()


def _built_broken(hosts: Hosts, name: str, options: Mapping[str, Any]) -> str | None:
    decide = build_order(name, options)
    orders: dict[int, Order] = {}
    stage_of = stages_of(hosts)
    for rank, stage in stage_of.items():
        place = PipelinePosition(stage, len(hosts), hosts[stage].count(rank))
        orders[rank] = decide(place)
        if not isinstance(orders[rank], Order):
            return f"returns {type(orders[rank]).__name__}; it must be an orchestrator.comm.pipeline_schedules.Order"
        if orders[rank] != decide(place):
            return f"is not pure: asked again for {place} it gives another order"
    try:
        programs = play(hosts, decide)
    except ValueError as error:
        return f"has a deadlock: {error}"
    interpreter = Interpreter(hosts, programs)
    if (problem := interpreter.run()) is not None:
        return problem
    for rank, most in enumerate(interpreter.most):
        if rank in orders and most > orders[rank].in_flight:
            return f"is not bounded: rank {rank} has {most} shards in flight, its order allows {orders[rank].in_flight}"
    return None


class Interpreter:
    """Members that do their programs, and links that keep their order. most: by rank, the most shards it had in flight."""

    def __init__(self, hosts: Hosts, programs: Programs) -> None:
        self._hosts = hosts
        self._programs = programs
        self._position = [0] * len(programs)
        self._links: dict[tuple[int, int], deque[Task]] = defaultdict(deque)
        self._in_flight: list[set[int]] = [set() for _ in programs]
        self.most = [0] * len(programs)

    def run(self) -> str | None:
        """The law that is broken, as a predicate."""
        hosted = {(stage, shard): rank for stage, ranks in enumerate(self._hosts) for shard, rank in enumerate(ranks)}
        done = [(rank, task) for rank, program in enumerate(self._programs) for task in program]
        for rank, task in done:
            if hosted.get((task.stage, task.shard)) != rank:
                return f"is not complete: rank {rank} does {_words(task)}, which it does not host"
        if len(set(done)) != len(done) or len(done) != 2 * len(hosted):
            return (
                f"is not complete: {len(set(done))} tasks are done in {len(done)} places, instead of {2 * len(hosted)}"
            )
        moved = True
        while moved:
            moved = False
            for rank in range(len(self._programs)):
                steps, problem = self._go_on(rank)
                if problem is not None:
                    return problem
                moved = moved or steps > 0
        stuck = [rank for rank, program in enumerate(self._programs) if self._position[rank] < len(program)]
        if stuck:
            waits = self._programs[stuck[0]][self._position[stuck[0]]]
            return f"has a deadlock: ranks {stuck} wait for ever, the first one for what {_words(waits)} needs"
        return None

    def _go_on(self, rank: int) -> tuple[int, str | None]:
        """Let a rank do all that it can; returns how many tasks that were."""
        program, before = self._programs[rank], self._position[rank]
        while self._position[rank] < len(program):
            task = program[self._position[rank]]
            source = self._neighbour(task, -1)
            if source is not None:
                link = self._links[source, rank]
                if not link:
                    break
                if link[0] != task:
                    return 0, (
                        f"is not in order: rank {rank} waits for what {_words(task)} needs, and rank {source} sends what "
                        f"{_words(link[0])} needs"
                    )
                link.popleft()
            if (problem := self._compute(rank, task)) is not None:
                return 0, problem
            target = self._neighbour(task, 1)
            if target is not None:
                stage = task.stage + (1 if task.kind == "forward" else -1)
                self._links[rank, target].append(task._replace(stage=stage))
            self._position[rank] += 1
        return self._position[rank] - before, None

    def _neighbour(self, task: Task, way: int) -> int | None:
        """The rank that a task's result goes to (way 1), or that its input comes from (way -1)."""
        stage = task.stage + (way if task.kind == "forward" else -way)
        return self._hosts[stage][task.shard] if 0 <= stage < len(self._hosts) else None

    def _compute(self, rank: int, task: Task) -> str | None:
        flying = self._in_flight[rank]
        if task.kind == "forward":
            flying.add(task.shard)
            self.most[rank] = max(self.most[rank], len(flying))
            return None
        if task.shard not in flying:
            return f"is not complete: rank {rank} does {_words(task)} before its forward"
        flying.remove(task.shard)
        return None


def _words(task: Task) -> str:
    return f"the {task.kind} of shard {task.shard} in stage {task.stage}"
