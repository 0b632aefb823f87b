"""The conditions of a true cluster, from what members report of their time in a few short runs. Pure.

    compute_s      of a run of one worker: processor time of a micro-batch
    update_s       of the same: that of the rest of a step, what computing takes beside its micro-batches included
    contention     of runs on no more workers than cores: how much more both are there, where workers share caches
    message_s      of exchange and waiting beyond those of one worker: what grows with the number of messages
    vote_s         of the same: what does not, where runs of several numbers of workers tell the two apart
    background_s   of the processes beside their computing thread
    others         share of a core that the driver and Ray's own processes take
    byte_s         is measured apart: adding one vector to another
    latency_s      what is left between the predicted and the measured time of a step of two workers, if the machine were quiet
    switch_s       of runs on more workers than cores: what is left of the time of a step in the same way

All but the last two are processor time, which whatever else the machine does disturbs less than times on the wall, and all of
a run are from the same windows. Two runs, of one worker and of two, are enough for layouts of no more workers than cores;
what more workers than cores cost takes a third, such as one of four workers on two cores.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.comm.topologies import build_schedule
from orchestrator.controller.shard_assignment import assign_shards
from orchestrator.experiments.simulation.conditions import Conditions, Network
from orchestrator.experiments.simulation.cores import SimulatedStep, messages_of, simulate_step
from orchestrator.records import times

_OF_THE_EXCHANGE = ("exchange", "wait")
_OF_A_STEP = ("compute", *_OF_THE_EXCHANGE, "update", "report")
_STEPS_S = 1e-7  # to which what is left of a step is sought


@dataclass(frozen=True)
class Layout:
    """A layout of a run. loaders: processes per worker that fetch ahead."""

    topology: str
    workers: int
    loaders: int = 0

    def __str__(self) -> str:
        return f"{self.topology}, {self.workers}" + (f", {self.loaders} loaders" if self.loaders else "")


@dataclass(frozen=True)
class Measured:
    """One layout, as it ran. Seconds are of a step."""

    layout: Layout  # topology, workers and loaders
    wall_s: float  # time of a step on the wall clock
    busy_s: Mapping[str, float]  # processor time of a worker's computing thread, by kind
    process_s: float  # processor time of a worker's process
    driver_s: float  # processor time of the driver and of Ray's own processes
    steps: int  # number of steps that were looked at
    fixed: float = 0.0  # share of computing that is no micro-batch's; 0 where that is not known
    disturbed: float = 0.0  # share of the cores that other programs took meanwhile


@dataclass(frozen=True)
class Model:
    """The model that was trained in the runs. sizes: bytes of the vector that travels, as sums and as results; options: of
    topologies."""

    shards: int
    sizes: tuple[float, float]
    options: Mapping[str, Mapping[str, Any]]


def measured(
    layout: Layout,
    windows: Sequence[Mapping[str, Any]],
    driver_s: float = 0.0,
    spans: Iterable[Mapping[str, Any]] = (),
) -> Measured | None:
    """The figures of one short run. windows, spans: of a run, as `times.jsonl` and `timeline.jsonl` have them. The first
    step computes twice, so its windows do not count. None where nothing else is left."""
    whole = [each for each in windows if each["first"] > 0 and each["steps"] and each["member"].startswith("worker ")]
    if not whole:
        return None
    quiet = [each for each in whole if not {"evaluate", "checkpoint", "connect"} & each["seconds"].keys()] or whole
    walls = [_of_steps(each["seconds"]) / each["steps"] for each in quiet]
    busy = {
        kind: statistics.median(each["busy"].get(kind, 0.0) / each["steps"] for each in quiet) for kind in times.KINDS
    }
    process = statistics.median(each["process"] / each["steps"] for each in quiet)
    steps = sum(each["steps"] for each in quiet)
    return Measured(layout, statistics.median(walls), busy, process, driver_s, steps, _fixed(spans))


def _fixed(spans: Iterable[Mapping[str, Any]]) -> float:
    """Share of computing that is no micro-batch's. Work before the first one of a step and after the last one counts for
    these two, so the others tell how long one takes. 0 if a worker has fewer than three."""
    computed: dict[tuple[str, int], list[float]] = {}
    for line in spans:
        for kind, step, shard, _, seconds in line["spans"]:
            if kind == "compute" and shard is not None and step:
                computed.setdefault((line["member"], step), []).append(seconds)
    shares = [
        1 - len(each) * statistics.median(each[1:-1]) / sum(each)
        for each in computed.values()
        if len(each) > 2 and sum(each) > 0
    ]
    return max(0.0, statistics.median(shares)) if shares else 0.0


def calibrate(model: Model, points: Sequence[Measured], cores: int, byte_s: float) -> Conditions:
    """Derive the conditions of a cluster from measured runs. points: at least one run of one worker without servers, who
    talks to nobody; those of more give the cost of messages. cores: that workers share, 0 where each has its own; byte_s:
    processor time of adding a byte."""
    alone = [each for each in points if each.layout.workers == 1]
    several = [each for each in points if each.layout.workers > 1]
    fixed = statistics.median(each.fixed * each.busy_s["compute"] for each in alone)
    compute = statistics.median((1 - each.fixed) * each.busy_s["compute"] for each in alone) / model.shards
    exchange = statistics.median(map(_exchanged, alone))
    outside_compute = fixed + statistics.median(map(_outside_compute, alone))
    network = Network(latency_s=0.0, bandwidth=1e12, byte_s=byte_s)
    vote = 0.0
    if several:
        vote, message = _vote_and_message(model, several, exchange, network)
        network = replace(network, message_s=message)

    def slower(point: Measured) -> float:
        return _worked(point) / (outside_compute + compute * model.shards / point.layout.workers)

    roomy = [each for each in several if not _crowded(each, cores)]
    contention = max(1.0, statistics.median(map(slower, roomy))) if roomy else 1.0
    conditions = Conditions(
        network=network,
        compute_s=compute,
        update_s=outside_compute + exchange,
        vote_s=vote,
        contention=contention,
        cores=cores,
        background_s=statistics.median(max(0.0, each.process_s - sum(each.busy_s.values())) for each in points),
        others=min(1.0, statistics.median(each.driver_s / each.wall_s for each in points)),
    )
    if not several:
        return conditions
    # Other work of the machine slows all alike: as much as it slows a worker that waits for nobody.
    slowed = max(1.0, min(each.wall_s / predicted(model, each.layout, conditions) for each in alone))

    def left(point: Measured, conditions_with: Callable[[float], Conditions]) -> float:
        return _left(model, replace(point, wall_s=point.wall_s / slowed), conditions_with)

    def with_latency(seconds: float) -> Conditions:
        return replace(conditions, network=replace(network, latency_s=seconds))

    connected = with_latency(left((roomy or several)[0], with_latency))

    def with_switch(seconds: float) -> Conditions:
        return replace(connected, switch_s=seconds)

    crowded = [left(each, with_switch) for each in several if roomy and _crowded(each, cores)]
    return with_switch(statistics.median(crowded)) if crowded else connected


def _crowded(point: Measured, cores: int) -> bool:
    """Whether there were more workers than cores."""
    return 0 < cores < point.layout.workers


def _vote_and_message(
    model: Model, points: Sequence[Measured], alone_s: float, network: Network
) -> tuple[float, float]:
    """Processor time of a vote and a sum beside their messages, and of a message beside its bytes: the straight line through
    what workers exchange, by how many messages that is. From one number of messages alone, all is theirs. alone_s: of a vote
    with oneself."""
    known = [_messages_and_seconds(model, each, alone_s, network) for each in points]
    numbers = [messages for messages, _ in known]
    if len(set(numbers)) > 1:
        slope, start = statistics.linear_regression(numbers, [seconds for _, seconds in known])
        if slope >= 0 and start >= 0:
            return start, slope
    return 0.0, statistics.median(seconds / messages for messages, seconds in known)


def _messages_and_seconds(model: Model, point: Measured, alone_s: float, network: Network) -> tuple[float, float]:
    """The messages that a worker hands over and takes in a step, and processor time of exchange beside their bytes."""
    layout = point.layout
    schedule = build_schedule(layout.topology, layout.workers, **model.options.get(layout.topology, {}))
    bytes_alone = Conditions(network=replace(network, message_s=0.0), update_s=0.0)
    adding = simulate_step(schedule, [0.0] * layout.workers, model.sizes, bytes_alone).workers_s / layout.workers
    return messages_of(schedule) / layout.workers, max(0.0, _exchanged(point) - alone_s - adding)


def predicted(model: Model, layout: Layout, conditions: Conditions) -> float:
    """Seconds of a step."""
    return _simulated(model, layout, conditions).seconds


def _simulated(model: Model, layout: Layout, conditions: Conditions) -> SimulatedStep:
    schedule = build_schedule(layout.topology, layout.workers, **model.options.get(layout.topology, {}))
    hosted = [len(each) for each in assign_shards(model.shards, layout.workers)]
    each = conditions.compute_s * conditions.slowed(layout.workers)
    computing = [each * shards for shards in hosted]
    return simulate_step(schedule, computing, model.sizes, conditions, shards=max(hosted))


def _left(model: Model, point: Measured, conditions_with: Callable[[float], Conditions]) -> float:
    """The seconds with which the step of this point is predicted; none where it takes no longer without."""

    def short(seconds: float) -> bool:
        return predicted(model, point.layout, conditions_with(seconds)) < point.wall_s

    low, high = 0.0, point.wall_s
    if not short(low):
        return 0.0
    while high - low > _STEPS_S:
        middle = (low + high) / 2
        low, high = (middle, high) if short(middle) else (low, middle)
    return low


def _worked(point: Measured) -> float:
    """Processor seconds of a worker's own part of a step."""
    return point.busy_s["compute"] + _outside_compute(point)


def _of_steps(seconds: Mapping[str, float]) -> float:
    """Without evaluations, checkpoints and changes of membership."""
    return sum(seconds.get(kind, 0.0) for kind in _OF_A_STEP)


def _exchanged(point: Measured) -> float:
    return sum(point.busy_s[kind] for kind in _OF_THE_EXCHANGE)


def _outside_compute(point: Measured) -> float:
    return point.busy_s["update"] + point.busy_s["report"]
