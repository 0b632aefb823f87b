"""The series in pictures of a run: losses by step, metrics by step, and columns that stand for many points. Pure but for
reading.

Numbers that are not finite have no place on an axis and are left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.comm.pipeline_schedules import Hosts, Span, nominal, programs, timeline
from orchestrator.comm.pipeline_schedules.timeline import Costs
from orchestrator.controller.shard_assignment import hosts_of
from orchestrator.records.barriers import Staleness
from orchestrator.records.lines import written
from orchestrator.records.trace import loss_of

Series = list[tuple[int, float]]  # (step, value), steps ascending
Flow = tuple[tuple[Span, ...], bool]  # of one step, and whether its unit is seconds

COLUMNS = 400  # as many as one can tell apart in the picture
_FACTOR = 30.0  # values that span more than this are shown on a logarithmic axis


class Column(NamedTuple):
    """Neighbouring points as one: the step in their middle, their mean, the smallest and the largest of them."""

    step: float
    mean: float
    low: float
    high: float


def losses(trace: Path) -> Series:
    """The training loss of each step that tells it."""
    found = [(int(line["step"]), loss_of(line)) for line in written(trace)]
    return [(step, loss) for step, loss in found if loss is not None and math.isfinite(loss)]


def metrics(journal: Path) -> dict[str, Series]:
    """The validation metrics by name, in the order of their names, the loss first."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for event in written(journal):
        if event["event"] == "evaluated":
            for name, value in event["metrics"].items():
                if isinstance(value, int | float) and math.isfinite(value):
                    found[name][event["step"]] = value
    names = sorted(found, key=lambda name: (not is_loss(name), name))
    return {name: sorted(found[name].items()) for name in names}


def clocks(barriers: Sequence[Staleness]) -> list[Series]:
    """Per shard, its clock over the number of updates that all have made, where it changes."""
    found: list[Series] = [[(0, 0.0)] for _ in barriers[0].clocks]
    made = 0
    for barrier in barriers:
        for shard, _ in barrier.updates:
            made += 1
            found[shard].append((made, found[shard][-1][1] + 1))
    return [[*series, (made, series[-1][1])] for series in found]


def staleness(barriers: Iterable[Staleness]) -> Series:
    """The staleness of each update, in order, numbered from 1."""
    every = (ahead for barrier in barriers for _, ahead in barrier.updates)
    return [(number, float(ahead)) for number, ahead in enumerate(every, start=1)]


def flow(journal: Path, order: str, options: Mapping[str, Any]) -> Flow | None:
    """When the members of the last generation do what in a step; None where the model was not cut into stages. In seconds where
    it is known what stages cost, of which a forward is taken to have a third; otherwise in the time of a forward."""
    events = list(written(journal))
    begun = [event for event in events if event["event"] == "generation_started" and event.get("stages")]
    if not begun:
        return None
    hosts = hosts_of(begun[-1]["stages"], begun[-1]["shards"])
    proved = [event["seconds"] for event in events if event["event"] == "stages_proved"]
    measured = proved[-1] if proved and len(proved[-1]) == len(hosts) and min(proved[-1]) > 0 else None
    return _flow(hosts, order, options, measured)


def _flow(hosts: Hosts, order: str, options: Mapping[str, Any], seconds: Sequence[float] | None) -> Flow:
    """seconds: of a micro-batch in each stage, forward and backward together."""
    costs: Costs = nominal(len(hosts))
    if seconds is not None:
        whole = {stage: sum(costs[key] for key in costs if key[1] == stage) for stage in range(len(hosts))}
        costs = {key: cost / whole[key[1]] * seconds[key[1]] for key, cost in costs.items()}
    return timeline(hosts, programs(hosts, order, options), costs), seconds is not None


def is_loss(name: str) -> bool:
    """Whether a metric shares the axis of the training loss."""
    return name.rpartition("/")[2] == "loss"


def columns(series: Series) -> list[Column]:
    """The points themselves where they are few, otherwise at most COLUMNS columns, each of equally many neighbours."""
    size = math.ceil(len(series) / COLUMNS)
    groups = [series[start : start + size] for start in range(0, len(series), size)] if series else []
    return [_column(group) for group in groups]


def wants_logarithm(*many: Series) -> bool:
    values = [value for series in many for _, value in series]
    return bool(values) and min(values) > 0 and max(values) / min(values) > _FACTOR


def _column(group: Series) -> Column:
    values = [value for _, value in group]
    return Column((group[0][0] + group[-1][0]) / 2, math.fsum(values) / len(values), min(values), max(values))
