"""The conditions of a true cluster, from what members report of their time in a few short runs. Pure.

    compute_s      processor time of computing, over the shards               runs of one worker
    contention     how much more that is where workers share caches           runs of several workers
    update_s       of the rest of a step, the vote with oneself included      runs of one worker
    message_s      of exchange and waiting beyond that, over the messages     runs of several workers
    background_s   of the processes beside their computing thread, and the driver's, over the workers
    byte_s         is measured apart: adding one vector to another
    latency_s      what is left between the predicted and the measured time of a step of two workers, if the machine were quiet

All but the last are processor time, which whatever else the machine does disturbs little. A step's time is the median of a
run's windows, and the least of several runs, for a busy machine only slows down. All this comes from two runs, of one worker
and of two, so everything else is a prediction.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.control.shard_assignment import assign_shards
from orchestrator.records import times
from orchestrator.simulation.conditions import Conditions, Network
from orchestrator.simulation.cores import messages_of, play_step
from orchestrator.topologies import build_schedule

_OF_THE_EXCHANGE = ("exchange", "wait")
_OF_A_STEP = ("compute", *_OF_THE_EXCHANGE, "update", "report")
_STEPS_S = 1e-7  # to which the latency is sought


@dataclass(frozen=True)
class Layout:
    """loaders: processes per worker that fetch ahead."""

    topology: str
    workers: int
    loaders: int = 0

    def __str__(self) -> str:
        return f"{self.topology}, {self.workers}" + (f", {self.loaders} loaders" if self.loaders else "")


@dataclass(frozen=True)
class Measured:
    """One layout, as it ran. Per step: wall_s: its time; busy_s: processor seconds of a worker's computing thread, by kind;
    process_s: of a worker's process; driver_s: of the driver. steps: that were looked at."""

    layout: Layout
    wall_s: float
    busy_s: Mapping[str, float]
    process_s: float
    driver_s: float
    steps: int


@dataclass(frozen=True)
class Model:
    """What the runs are of. sizes: bytes of the vector that travels, as sums and as results; options: of topologies."""

    shards: int
    sizes: tuple[float, float]
    options: Mapping[str, Mapping[str, Any]]


def measured(layout: Layout, windows: Sequence[Mapping[str, Any]], driver_s: float = 0.0) -> Measured | None:
    """windows: of a run, as `times.jsonl` has them. The first step computes twice, so its windows do not count. None where
    nothing else is left."""
    told = [each for each in windows if each["first"] > 0 and each["steps"] and each["member"].startswith("worker ")]
    if not told:
        return None
    quiet = [each for each in told if not {"evaluate", "checkpoint", "connect"} & each["seconds"].keys()] or told
    walls = [_of_steps(each["seconds"]) / each["steps"] for each in quiet]
    busy = {
        kind: statistics.median(each["busy"].get(kind, 0.0) / each["steps"] for each in quiet) for kind in times.KINDS
    }
    process = statistics.median(each["process"] / each["steps"] for each in quiet)
    return Measured(layout, statistics.median(walls), busy, process, driver_s, sum(each["steps"] for each in quiet))


def together(found: Sequence[Measured]) -> Measured:
    """Of several runs of one layout: the shortest step, and the medians of what it costs."""
    return Measured(
        found[0].layout,
        min(each.wall_s for each in found),
        {kind: statistics.median(each.busy_s[kind] for each in found) for kind in found[0].busy_s},
        statistics.median(each.process_s for each in found),
        statistics.median(each.driver_s for each in found),
        sum(each.steps for each in found),
    )


def calibrate(model: Model, points: Sequence[Measured], cores: int, byte_s: float) -> Conditions:
    """points: at least one run of one worker without servers, who talks to nobody; those of more give the cost of messages.
    cores: that workers share, 0 where each has its own; byte_s: processor time of adding a byte."""
    alone = [each for each in points if each.layout.workers == 1]
    several = [each for each in points if each.layout.workers > 1]
    compute = statistics.median(map(_computed, alone)) / model.shards
    exchange = statistics.median(_exchanged(each) for each in alone)
    network = Network(latency_s=0.0, bandwidth=1e12, byte_s=byte_s)
    if several:
        found = [_message_s(model, each, exchange, network) for each in several]
        network = replace(network, message_s=statistics.median(found))
    background = statistics.median(
        max(0.0, each.process_s - sum(each.busy_s.values())) + each.driver_s / each.layout.workers for each in points
    )
    conditions = Conditions(
        network=network,
        compute_s=compute,
        contention=max(1.0, statistics.median(map(_computed, several)) / model.shards / compute) if several else 1.0,
        update_s=statistics.median(_rest(each) for each in alone) + exchange,
        cores=cores,
        background_s=background,
    )
    if not several:
        return conditions
    # What else the machine does slows all alike: as much as it slows a worker that waits for nobody.
    slowed = max(1.0, min(each.wall_s / predicted(model, each.layout, conditions) for each in alone))
    quiet = replace(several[0], wall_s=several[0].wall_s / slowed)
    return replace(conditions, network=replace(network, latency_s=_latency(model, quiet, conditions)))


def _message_s(model: Model, point: Measured, alone_s: float, network: Network) -> float:
    """Processor time of a message beyond its bytes. alone_s: of a vote with oneself."""
    layout = point.layout
    schedule = build_schedule(layout.topology, layout.workers, **model.options.get(layout.topology, {}))
    bytes_alone = Conditions(network=replace(network, message_s=0.0), update_s=0.0)
    adding = play_step(schedule, [0.0] * layout.workers, model.sizes, bytes_alone).workers_s
    of_all = (_exchanged(point) - alone_s) * layout.workers - adding
    return max(0.0, of_all) / max(1, messages_of(schedule))


def predicted(model: Model, layout: Layout, conditions: Conditions) -> float:
    """Seconds of a step."""
    schedule = build_schedule(layout.topology, layout.workers, **model.options.get(layout.topology, {}))
    hosted = [len(each) for each in assign_shards(model.shards, layout.workers)]
    each = conditions.compute_s * (conditions.contention if layout.workers > 1 else 1.0)
    computing = [each * shards for shards in hosted]
    return play_step(schedule, computing, model.sizes, conditions, shards=max(hosted)).seconds


def _latency(model: Model, point: Measured, conditions: Conditions) -> float:
    """With which the step of this point is predicted; none where the rest already takes as long."""

    def short(latency: float) -> bool:
        tried = replace(conditions, network=replace(conditions.network, latency_s=latency))
        return predicted(model, point.layout, tried) < point.wall_s

    low, high = 0.0, point.wall_s
    if not short(low):
        return 0.0
    while high - low > _STEPS_S:
        middle = (low + high) / 2
        low, high = (middle, high) if short(middle) else (low, middle)
    return low


def _computed(point: Measured) -> float:
    """Processor seconds of all shards."""
    return point.busy_s["compute"] * point.layout.workers


def _of_steps(seconds: Mapping[str, float]) -> float:
    """Without evaluations, checkpoints and changes of membership."""
    return sum(seconds.get(kind, 0.0) for kind in _OF_A_STEP)


def _exchanged(point: Measured) -> float:
    return sum(point.busy_s[kind] for kind in _OF_THE_EXCHANGE)


def _rest(point: Measured) -> float:
    return point.busy_s["update"] + point.busy_s["report"]
