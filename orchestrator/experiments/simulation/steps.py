"""Many steps under a mode, with stragglers, jitter and stalls, in virtual time.

Lockstep: a step is the slowest worker's computation, the exchange, the update. In async phases the k-th update of a shard
ends at F(k) = max(F(k - 1), M(k - 1 - s)) + its time. M(j) is the time at which all shards have made j updates, and s the
staleness of the mode (none: no maximum). An async phase ends when `rest_every` updates per shard have been made in all, and a
sync barrier is a step's exchange. This is the mode's own rule (`comm.synchronization.mode.bounded`), for all shards at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from orchestrator.comm.synchronization import Mode
from orchestrator.experiments.simulation.conditions import Conditions
from orchestrator.experiments.simulation.exchange import Exchanged

Times = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Stepped:
    """The time of a step under a mode, in seconds. In async phases a step is one update per shard."""

    seconds: float  # mean of the steps
    median_s: float  # median of the steps; in async phases of the sync barriers, shared by their steps
    worst_s: float  # of the slowest step; in async phases of the slowest rest, shared by its steps
    compute_s: float  # part of a step in which the mean worker computes
    exchange_s: float  # part of a step that the exchange takes
    waiting: float  # share of the workers' time in which they wait for slower ones


@dataclass(frozen=True)
class Paces:
    """How fast each worker is, in each step. always: [workers] seconds of a micro-batch of each in the long run; each: [steps,
    workers] those of a step; late: [steps, workers] for how long a stall holds each up."""

    always: Times
    each: Times
    late: Times

    def of(self, hosted: npt.NDArray[np.int64]) -> Times:
        """[steps, workers] seconds that each computes, with so many shards one after the other."""
        return self.each * hosted + self.late


def paces(conditions: Conditions, workers: int, steps: int) -> Paces:
    random = np.random.default_rng([conditions.seed, workers, steps])
    slow = np.zeros(workers, bool)
    slow[random.permutation(workers)[: round(conditions.stragglers * workers)]] = True
    speeds = np.resize(np.array(conditions.speeds or (1.0,)), workers)
    always = conditions.compute_s * conditions.slowed(workers) * np.where(slow, conditions.slower_by, 1.0) / speeds
    each = np.broadcast_to(always, (steps, workers)).copy()
    if conditions.jitter:
        sigma = np.sqrt(np.log1p(conditions.jitter**2))
        each *= random.lognormal(-(sigma**2) / 2, sigma, each.shape)
    late = np.zeros(each.shape)
    if conditions.stalls:
        late = np.where(random.random(each.shape) < conditions.stalls, conditions.stall_s, 0.0)
    return Paces(always, each, late)


def rest_of_a_step(conditions: Conditions, workers: int) -> float:
    """The seconds of a worker's step beside its micro-batches and its messages."""
    return conditions.update_s * conditions.slowed(workers) + (conditions.vote_s if workers > 1 else 0.0)


def shared(seconds: float, busy_s: float, cores: int) -> float:
    """A phase that takes so long with a core for each, where they share `cores`: no less than all its processor time."""
    return max(seconds, busy_s / cores) if cores else seconds


def lockstep(
    conditions: Conditions, times: Times, exchanged: Exchanged, played: npt.NDArray[np.float64] | None = None
) -> Stepped:
    """Simulate steps that all workers take together. played: seconds of each step, where it was played task by task
    (`cores.py`)."""
    workers, cores = times.shape[1], conditions.cores
    each = rest_of_a_step(conditions, workers)
    update = shared(each, each * workers, cores)
    exchange = shared(exchanged.seconds, exchanged.busy_s, cores)
    computing = times.max(axis=1)
    if cores:
        computing = np.maximum(computing, times.sum(axis=1) / cores)
    whole = computing + exchange + update if played is None else played
    mean = float(times.mean())
    # Rounding may make a mean larger than the largest.
    waiting = max(0.0, float((computing - times.mean(axis=1)).mean())) / float(whole.mean()) if not cores else 0.0
    return Stepped(float(whole.mean()), float(np.median(whole)), float(whole.max()), mean, exchange, waiting)


def async_phases(
    conditions: Conditions, times: Times, hosted: npt.NDArray[np.int64], exchanged: Exchanged, mode: Mode
) -> Stepped:
    """Simulate workers that run free between rests. times: of a step of each worker, which makes its shards' updates one
    after the other, and so in rounds."""
    steps, workers = times.shape
    every = min(mode.rest_every, steps)
    exchange = shared(exchanged.seconds, exchanged.busy_s, conditions.cores)
    cost = times + conditions.update_s * conditions.slowed(workers) * hosted
    if conditions.cores:
        cost = np.maximum(cost, cost.sum(axis=1, keepdims=True) / conditions.cores)
    seconds, idle = [], 0.0
    for first in range(0, steps - every + 1, every):
        took, waited = _sprint(cost[first : first + every], hosted, mode)
        seconds.append((took + exchange) / every)
        idle += waited
    each = np.array(seconds)
    waiting = max(0.0, idle) / (float(each.sum()) * every * workers)
    return Stepped(
        float(each.mean()), float(np.median(each)), float(each.max()), float(times.mean()), exchange / every, waiting
    )


def _sprint(cost: Times, hosted: npt.NDArray[np.int64], mode: Mode) -> tuple[float, float]:
    """(seconds until all have made the async phase's updates together, seconds that all workers waited in it)."""
    every = cost.shape[0]
    target = every * int(hosted.sum())
    ends: list[Times] = [np.zeros(cost.shape[1])]  # of each worker's rounds
    slowest = [0.0]  # when all have made so many rounds
    while True:
        done = len(ends) - 1
        held = mode.staleness is not None and done > mode.staleness
        start = np.maximum(ends[-1], slowest[done - (mode.staleness or 0)]) if held else ends[-1]
        ends.append(start + cost[done % every])
        slowest.append(float(ends[-1].max()))
        known = float(ends[-1].min())  # what ends later than the fastest worker's last round may be missing here
        if int(sum(hosted[row <= known].sum() for row in ends[1:])) >= target:
            break
    order = np.sort(np.concatenate(ends[1:]))
    weights = np.concatenate([hosted] * (len(ends) - 1))[np.argsort(np.concatenate(ends[1:]), kind="stable")]
    end = float(order[np.searchsorted(np.cumsum(weights), target)])
    worked = sum(
        float(np.clip(end - (row - cost[number % every]), 0.0, cost[number % every]).sum())
        for number, row in enumerate(ends[1:])
    )
    return end, max(0.0, end * cost.shape[1] - worked)
