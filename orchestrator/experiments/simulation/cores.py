"""Lockstep steps of members that share the cores of a machine, or have one each: task by task, in virtual time
(`discrete_events.py`).

A worker computes its shards one after the other, takes its part in the vote and in the sum, message by message, updates, and
goes on with the next step.

If cores are shared, work beside the steps has tasks of its own, which wait for a core like all others, and for which others
wait. Each worker's process has something to do after a step (its reports, threads of Ray), and the driver with Ray's
processes takes a share of a core all the time. If there are more workers than cores, each finds the caches of its core used
by another in every step, which costs processor time too.

A vote goes up its tree and down again. With small models its messages cost as much as the sum's, so it is played too; and
eight workers on two cores make each message wait for a core.

Source: what a change of process costs beyond the change itself: Li, Ding and Shen, "Quantifying the cost of context switch"
(2007).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, repeat

from orchestrator.comm.topologies import Schedule
from orchestrator.comm.topologies.voting import vote_schedule
from orchestrator.experiments.simulation.conditions import Conditions
from orchestrator.experiments.simulation.discrete_events import Simulation, Task, messages
from orchestrator.experiments.simulation.exchange import chunk_sizes

MOST_MEMBERS = 64  # more take long to play
_VOTE = {"add": 0.0, "copy": 0.0}  # bytes: so few that only latency counts
_STEPS = 8  # alike, of which the first finds no work of an earlier one and does not count
_PIECES = 4  # in a step, of what the driver and Ray do


@dataclass(frozen=True)
class SimulatedStep:
    """The time of one simulated step. seconds: of a step; busy_s: processor time of all members in it, and workers_s that of
    the workers' computing threads."""

    seconds: float
    busy_s: float
    workers_s: float


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
    ends = steps.play([computing] * _STEPS)
    costs = steps.costs(computing)
    beside = conditions.background_s * schedule.workers
    return SimulatedStep((ends[-1] - ends[0]) / (_STEPS - 1), sum(costs) + beside, sum(costs[: schedule.workers]))


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
    ends = _Steps(schedule, sizes, conditions, shards).play(rows)
    return [end - before for before, end in zip([0.0, *ends], ends, strict=False)]


def messages_of(schedule: Schedule) -> int:
    """Handed over and taken in a step by all workers together: of the vote and of the sum."""
    others = _Steps(schedule, (0.0, 0.0), Conditions(), 1).others[: schedule.workers]
    return sum(task.sends is not None or task.takes is not None for tasks in others for task in tasks)


@dataclass(frozen=True)
class _Steps:
    """The tasks of each member in a step."""

    schedule: Schedule
    sizes: tuple[float, float]
    conditions: Conditions
    shards: int

    def play(self, rows: Sequence[Sequence[float]]) -> list[float]:
        """When the last worker has done each step. rows: of each step the seconds that each worker computes."""
        members = range(self.schedule.members)
        programs = [chain.from_iterable(map(partial(self._program, rank), rows)) for rank in members]
        simulation = Simulation(programs, self.conditions, [0] * len(members))
        costs = self.costs(rows[0])
        least_s = max(*costs, sum(costs) / (self.conditions.cores or len(costs)))  # of a step, for what is done in it
        simulation.run(every_s=least_s / _PIECES)
        return [max(each) for each in zip(*simulation.ends[: self.schedule.workers], strict=True)]

    def costs(self, row: Sequence[float]) -> list[float]:
        """Seconds of a core that each member takes in a step."""
        return [sum(task.cost_s for task in self._program(rank, row)) for rank in range(self.schedule.members)]

    def _program(self, rank: int, row: Sequence[float]) -> Iterator[Task]:
        if rank < self.schedule.workers:
            crowded = 0 < self.conditions.cores < self.schedule.workers
            each = row[rank] / self.shards
            yield Task(each + self.conditions.switch_s * crowded)
            yield from repeat(Task(each), self.shards - 1)
        yield from self.others[rank]

    @cached_property
    def others(self) -> list[list[Task]]:
        """The vote, the sum and the rest of each member's step."""
        schedule, conditions = self.schedule, self.conditions
        votes = vote_schedule(schedule.members)
        sizes = chunk_sizes(schedule, *self.sizes)

        def of(rank: int) -> Iterator[Task]:
            if schedule.members > 1:
                yield Task(conditions.vote_s)
                yield from messages(votes, rank, _VOTE, conditions.network)
                yield from messages(schedule, rank, sizes, conditions.network)
            if rank < schedule.workers:
                yield Task(conditions.update_s * conditions.slowed(schedule.workers), ends=True)

        return [list(of(rank)) for rank in range(schedule.members)]
