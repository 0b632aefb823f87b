"""A run under imagined conditions, for every topology and mode asked for: what a step takes, sends and waits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np

from orchestrator.comm.synchronization import Mode, build_mode
from orchestrator.comm.topologies import TOPOLOGIES, Schedule, build_schedule
from orchestrator.comm.topologies.routes import Routes
from orchestrator.common.figures import aligned
from orchestrator.config.plan import Members, Timeouts
from orchestrator.controller.shard_assignment import assign_shards
from orchestrator.controller.state import Requirements
from orchestrator.errors import UsageError
from orchestrator.experiments.simulation import cores, steps
from orchestrator.experiments.simulation.balance import assigned, with_work_stealing
from orchestrator.experiments.simulation.conditions import Conditions, Network
from orchestrator.experiments.simulation.exchange import Exchanged, exchange, play
from orchestrator.experiments.simulation.losses import MOST_WORKERS, Scenario, SimulatedOutcome, simulate

_SUM_BYTES, _RESULT_BYTES = 8, 4  # of an element: exact sums are float64, results float32
_UPDATE_BYTES = 8  # of an asynchronous update, int64
_LOSSES = 40  # in the mean, of a scenario that is looked at
_MANY_WORKERS, _FEW_LOSSES = 256, 10  # with more workers than these, which take long
_PATIENCE_S = 1e9  # nothing times out in virtual time
_TRACED_STEPS = 3
_TRACED_MEMBERS = 64
_MOST_ROUTES = 128


@dataclass(frozen=True)
class Question:
    """The question to a simulation."""

    workers: int  # number of them
    shards: int  # number of them, dealt to the workers
    elements: int  # number of those of the model
    steps: int  # number of steps to simulate
    topologies: Sequence[tuple[str, Mapping[str, Any]]]  # (name, options) of each
    modes: Sequence[tuple[str, Mapping[str, Any]]]  # (name, options) of each
    conditions: Conditions  # what the runs meet
    sum_bytes: int = _SUM_BYTES  # bytes of an element of a sum; 8 where it is exact
    checkpoint: int = 0  # steps from one checkpoint to the next; 0 for none
    by_speed: bool = False  # whether shards are dealt by the workers' speeds, in lockstep
    claims: bool = False  # whether workers of a host claim shards from each other, in lockstep

    @property
    def sizes(self) -> tuple[float, float]:
        """Bytes of the vector that travels, as sums and as results."""
        return self.elements * self.sum_bytes, self.elements * _RESULT_BYTES


@dataclass(frozen=True)
class SimulatedRow:
    """The answer for one topology under one mode. Seconds and bytes are of a step."""

    topology: str  # name of it
    mode: str  # name of it
    step_s: float  # mean of the steps
    median_s: float  # median of the steps
    worst_s: float  # of the slowest step
    compute_s: float  # part of a step in which the mean worker computes
    exchange_s: float  # part of a step that the exchange takes
    waiting: float  # share of the workers' time in which they wait for slower ones
    link_bytes: float  # over the busiest link, one way
    sent_bytes: float  # out of the member that sends most
    goodput: float  # share of the time that is not lost to losses of workers
    losses: int  # number of lost workers, in the scenario that was looked at
    played: bool  # whether all moves of the schedule were played
    driven: bool  # whether the controller itself decided
    wire_bytes: float  # out of the host that sends most to others

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def answer(question: Question) -> list[SimulatedRow]:
    hosted = np.array([len(each) for each in assign_shards(question.shards, question.workers)])
    free = steps.paces(question.conditions, question.workers, question.steps).of(hosted)
    times = _balanced(question, question.steps)
    rows = []
    for name, options in question.topologies:
        schedule = _schedule(question, name, options)
        exchanged = exchange(schedule, *question.sizes, question.conditions.network)
        for mode_name, mode_options in question.modes:
            mode = build_mode(mode_name, mode_options)
            lockstep = mode.execution == "lockstep"
            stepped = _stepped(question, times if lockstep else free, hosted, exchanged, mode, schedule)
            outcome, driven = _outcome(question, stepped.seconds)
            rows.append(_row(question, name, mode_name, mode, schedule, stepped, exchanged, outcome, driven))
    return rows


def _balanced(question: Question, number: int) -> steps.Times:
    """[steps, workers] seconds that each worker computes in each of so many steps in lockstep."""
    workers = question.workers
    paces = steps.paces(question.conditions, workers, number)
    hosts = question.conditions.network.nodes(workers, 0)
    always = [float(each) for each in paces.always]
    hosted = np.array(assigned(question.shards, always, hosts, by_speed=question.by_speed, claims=question.claims))
    return with_work_stealing(hosted, paces.each, paces.late, hosts) if question.claims else paces.of(hosted)


def _schedule(question: Question, name: str, options: Mapping[str, Any]) -> Schedule:
    nodes = question.conditions.network.nodes(question.workers, TOPOLOGIES.resolve(name, options).get("servers", 0))
    return build_schedule(name, question.workers, nodes=nodes, **options)


def _stepped(
    question: Question, times: steps.Times, hosted: Any, exchanged: Exchanged, mode: Mode, schedule: Schedule
) -> steps.Stepped:
    if mode.execution == "lockstep":
        return steps.lockstep(question.conditions, times, exchanged, _on_cores(question, times, hosted, schedule))
    received = received_s(question.conditions.network, question.elements, question.workers)
    network = question.conditions.network
    wire = (question.workers - 1) * question.elements * _UPDATE_BYTES / network.bandwidth
    between = crossings(schedule, network) * question.elements * _UPDATE_BYTES / network.wire_bandwidth
    each = np.maximum(times + hosted * received, hosted * max(wire, between))
    return steps.async_phases(question.conditions, each, hosted, exchanged, mode)


def _on_cores(question: Question, times: steps.Times, hosted: Any, schedule: Schedule) -> Any:
    """Seconds of each step where few members share cores, task by task; None elsewhere."""
    if not question.conditions.cores or schedule.members > cores.MOST_MEMBERS:
        return None
    sizes, shards = question.sizes, int(max(hosted))
    if (times == times[0]).all():  # without chance all steps are alike
        one = cores.simulate_step(schedule, times[0].tolist(), sizes, question.conditions, shards=shards)
        return np.full(len(times), one.seconds)
    return np.array(cores.play_steps(schedule, times.tolist(), sizes, question.conditions, shards=shards))


def received_s(network: Network, elements: int, workers: int) -> float:
    """Processor time in which a worker takes an update from each of the others."""
    return (workers - 1) * (network.message_s + elements * _UPDATE_BYTES * network.byte_s)


def crossings(schedule: Schedule, network: Network) -> int:
    """How often an update of a worker comes to the host that most come to, of one update of each. Raises UsageError."""
    if network.hosts == 1:
        return 0
    if schedule.workers > _MOST_ROUTES:
        raise UsageError(
            f"hosts={network.hosts}: the ways of updates are looked at for {_MOST_ROUTES} workers at most",
            "give sync=bsp, or simulate fewer workers",
            code="simulation.routes",
        )
    nodes = network.nodes(schedule.workers, schedule.servers)
    routes, found = Routes(schedule, nodes), Counter[int]()
    for origin, member in product(range(schedule.workers), range(schedule.members)):
        for part in range(routes.slices):
            found.update(nodes[peer] for peer in routes.onward(member, origin, part) if nodes[peer] != nodes[member])
    return -(-max(found.values(), default=0) // routes.slices)


def _outcome(question: Question, step_s: float) -> tuple[SimulatedOutcome | None, bool]:
    """Driven through the controller; with very many workers as it would be: each loss costs its detection and half a step."""
    conditions, workers = question.conditions, question.workers
    if not conditions.failure_s:
        return None, True
    if workers <= MOST_WORKERS:
        members, timeouts = (
            Members(start=workers, least=1, most=workers),
            Timeouts(_PATIENCE_S, _PATIENCE_S, _PATIENCE_S),
        )
        requirements = Requirements(shards=question.shards, members=members, timeouts=timeouts)
        alone = step_s * workers  # of one worker with all shards
        losses, least = (_LOSSES, question.steps) if workers <= _MANY_WORKERS else (_FEW_LOSSES, 1)
        length = max(least, math.ceil(losses * conditions.failure_s / workers / step_s))
        scenario = Scenario(
            requirements, conditions, length, lambda living: max(step_s, alone / living), question.checkpoint
        )
        return simulate(scenario), True
    each = conditions.detect_s + conditions.regroup_s + step_s / 2
    whole = _LOSSES * conditions.failure_s / workers
    taken_s = _LOSSES * each
    return SimulatedOutcome(whole + taken_s, question.steps, 0, _LOSSES, _LOSSES, taken_s), False


def _row(
    question: Question,
    topology: str,
    name: str,
    mode: Mode,
    schedule: Schedule,
    stepped: steps.Stepped,
    exchanged: Exchanged,
    outcome: SimulatedOutcome | None,
    driven: bool,
) -> SimulatedRow:
    link, sent, wire = exchanged.link, exchanged.sent, exchanged.wire
    if mode.execution != "lockstep":  # a worker's updates come over every link of its way, and a rest once in a while
        update = question.elements * _UPDATE_BYTES * question.shards / question.workers
        link, sent = link / mode.rest_every + update, sent / mode.rest_every + update
        wire = wire / mode.rest_every + update * crossings(schedule, question.conditions.network)
    return SimulatedRow(
        topology=topology,
        mode=name,
        step_s=stepped.seconds,
        median_s=stepped.median_s,
        worst_s=stepped.worst_s,
        compute_s=stepped.compute_s,
        exchange_s=stepped.exchange_s,
        waiting=stepped.waiting,
        link_bytes=link,
        sent_bytes=sent,
        goodput=1.0 if outcome is None else outcome.goodput,
        losses=0 if outcome is None else outcome.losses,
        played=exchanged.played,
        driven=driven,
        wire_bytes=wire,
    )


def table(rows: Sequence[SimulatedRow]) -> str:
    """Aligned text; times in ms, bytes in MB. The traffic of wires between hosts is told if there are any."""
    wires = any(row.wire_bytes for row in rows)
    head = (
        "topology",
        "sync",
        "step ms",
        "worst",
        "compute",
        "exchange",
        "waiting",
        "MB per link",
        "MB sent",
        *(["MB per wire"] if wires else []),
        "goodput",
    )
    cells: list[tuple[str, ...]] = [head]
    for row in rows:
        times = (row.step_s, row.worst_s, row.compute_s, row.exchange_s)
        cells.append(
            (
                row.topology,
                row.mode,
                *(f"{1e3 * each:.4g}" for each in times),
                f"{row.waiting:.1%}",
                *(f"{each / 1e6:.4g}" for each in (row.link_bytes, row.sent_bytes, *[row.wire_bytes] * wires)),
                f"{row.goodput:.2%}" + ("" if row.driven else " *"),
            )
        )
    return aligned(cells, left=2)


def chrome_trace(question: Question, topology: tuple[str, Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """The first steps in lockstep as events of the Chrome trace format, in microseconds; None with too many members."""
    schedule = _schedule(question, *topology)
    if schedule.members > _TRACED_MEMBERS:
        return None
    times = _balanced(question, _TRACED_STEPS)
    exchanged, flights = play(schedule, *question.sizes, question.conditions.network, seen=True)
    events: list[dict[str, Any]] = []
    now = 0.0

    def slice_of(what: str, member: int, start: float, seconds: float) -> dict[str, Any]:
        name = f"worker {member}" if member < question.workers else f"server {member - question.workers}"
        return {"name": what, "ph": "X", "pid": name, "tid": what, "ts": 1e6 * start, "dur": 1e6 * seconds}

    for computing in times:
        events += [slice_of("compute", rank, now, float(seconds)) for rank, seconds in enumerate(computing)]
        now += float(computing.max())
        for flight in flights:
            chunk = f"send {flight.move.kind} {flight.move.chunk} to {flight.move.target}"
            events.append(slice_of(chunk, flight.move.source, now + flight.left, flight.came - flight.left))
        now += exchanged.seconds
        update = steps.rest_of_a_step(question.conditions, question.workers)
        events += [slice_of("update", rank, now, update) for rank in range(question.workers)]
        now += update
    return events
