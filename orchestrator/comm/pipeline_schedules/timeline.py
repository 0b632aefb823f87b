"""When each task of a pipeline's programs begins and ends, given what the tasks cost: for pictures, and for the bubble.

The bubble is the part of their common time in which members wait for others. For S equal stages and V shards in one column it
is (S - 1) / (V + S - 1) (Huang et al., "GPipe", section 2.3).

Programs are not changed. They are a function of hosts and order alone, and here they only get their times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from orchestrator.comm.pipeline_schedules.flow import COSTS, Hosts, Kind, Programs, Task, in_causal_order

Costs = Mapping[tuple[Kind, int], float]  # of a forward, and of a backward, of each stage; all in one unit


class Span(NamedTuple):
    rank: int
    task: Task
    start: float
    end: float


def nominal(stages: int) -> Costs:
    """The costs of tasks as long as nobody has measured them."""
    return {(kind, stage): float(cost) for kind, cost in COSTS.items() for stage in range(stages)}


def timeline(hosts: Hosts, programs: Programs, costs: Costs) -> tuple[Span, ...]:
    """By rank, in the order of its program. Raises ValueError where programs wait for each other for ever."""
    ends: dict[Task, float] = {}
    spans: list[list[Span]] = [[] for _ in programs]
    for rank, task, needed in in_causal_order(hosts, programs):
        done = spans[rank]
        start = max(done[-1].end if done else 0.0, 0.0 if needed is None else ends[needed])
        ends[task] = start + costs[task.kind, task.stage]
        done.append(Span(rank, task, start, ends[task]))
    return tuple(span for done in spans for span in done)


def bubble(spans: tuple[Span, ...]) -> float:
    """The part of the members' time, from the first start to the last end, in which they wait; 0 without tasks."""
    last: dict[int, float] = {}
    waited = 0.0
    for span in spans:
        waited += span.start - last.get(span.rank, 0.0)
        last[span.rank] = span.end
    end = max(last.values(), default=0.0)
    waited += sum(end - own for own in last.values())
    return waited / (end * len(last)) if end else 0.0
