"""How much memory a worker needs for a model: what its regions hold, and what the parameters need beside them. Pure, but for
`require` and `require_for_a_step`.

It does not know activations, batches, temporaries, copies for checkpoints; the regions of a compression, which are small
beside what it holds; nor what the optimizer of a pipeline remembers before it has taken a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch

from orchestrator.comm.collectives import partial_places
from orchestrator.comm.topologies import build_schedule
from orchestrator.comm.topologies.schedule import Schedule
from orchestrator.comm.transports.available_memory import available_bytes
from orchestrator.common.figures import megabytes, sized
from orchestrator.config.plan import Plan
from orchestrator.numerics import exact
from orchestrator.numerics.layout import Layout, most_waiting
from orchestrator.optim import optimizers

_FLOAT32: Final = int(torch.float32.itemsize)
_EACH_OF: Final = 16  # workers; of more, as many are looked at, since looking at one costs what it does in a step


def region_bytes(layout: Layout, schedule: Schedule, rank: int, sums: exact.Sums) -> int:
    """The size of this member's regions in a generation, if it is its first."""
    kept: int = sum(place.stop - place.start for place in partial_places(layout, schedule, rank).values())
    contributed = layout.size if rank < schedule.workers else 0
    return (contributed + kept) * sums.dtype.itemsize + layout.size * sums.result.itemsize


def ranks_that_tell(workers: int) -> Sequence[int]:
    """The ranks at whose needs it is enough to look where the largest is wanted: all of a few; of many, the first half of as
    many, and the others at even distances, with the last. None needs a block more (`tests/worker/test_footprint.py`)."""
    if workers <= _EACH_OF:
        return range(workers)
    first, more = _EACH_OF // 2, _EACH_OF - _EACH_OF // 2
    return [*range(first), *(workers - 1 - place * (workers - first) // more for place in range(more))]


def _most_region_bytes(layout: Layout, schedule: Schedule, sums: exact.Sums, ranks: Sequence[int] | None = None) -> int:
    looked_at = ranks_that_tell(schedule.workers) if ranks is None else ranks
    return max(region_bytes(layout, schedule, rank, sums) for rank in looked_at)


class Needed(NamedTuple):
    """About so many bytes."""

    host: int  # of host memory
    card: int = 0  # of the memory of a GPU; 0 where none computes

    def __str__(self) -> str:
        if not self.card:
            return megabytes(self.host)
        return f"{sized(self.card)} of its GPU" + (f" and {sized(self.host)} of host memory" if self.host else "")


def worker_needs(
    layout: Layout,
    schedule: Schedule,
    plan: Plan,
    *,
    parameters: int,
    feedback: bool = False,
    beside: int = 0,
    ranks: Sequence[int] | None = None,
) -> Needed:
    """The memory that the worker that needs most has for parameters, gradients, sums and the state of the optimizer.
    parameters: elements, frozen ones too; feedback: whether shards keep what a compression drops; beside: the bytes of its own
    sums on a GPU; ranks: the workers that are looked at, None for all."""
    trained = sum(slot.elements for slot in layout.slots)
    held = _held_bytes(layout, schedule, plan, trained, feedback=feedback)
    summing = _summing_bytes(layout, schedule, plan, ranks)
    kept: float = (plan.update.clip is not None) + (remembered(plan) or 0)
    local = plan.update.local
    if local is not None:  # where the round began, and what the local optimizer remembers
        kept += 1 + optimizers.remembered(local.optimizer.name, local.optimizer.options)
    model = round((parameters + trained * kept) * _FLOAT32)
    if plan.run.compute.device == "cpu":
        return Needed(held + summing + model)
    return Needed(0, held + summing + model) if plan.sums_stay_on_device else Needed(summing, held + beside + model)


def waiting_bytes(layout: Layout, plan: Plan, parameters: int) -> int:
    """The bytes of its GPU that a worker holds before its first generation: parameters, the copy with which they are compared
    until the first step, and the regions that every generation needs. For sums in host
    memory it holds the place to which the result comes, and the integers that clipped contributions are added up in."""
    sums = sums_of(plan)
    if plan.sums_stay_on_device or plan.updates_stay_on_device:
        summing = sums.dtype.itemsize + sums.result.itemsize
    else:
        summing = _FLOAT32 + (exact.INTEGERS.dtype.itemsize if plan.data.privacy is not None else 0)
    return (parameters + layout.size) * _FLOAT32 + layout.size * summing


def _held_bytes(layout: Layout, schedule: Schedule, plan: Plan, trained: int, *, feedback: bool) -> int:
    """For contributions until they are added up, and for what comes of them if they are encoded before."""
    hosted, result = -(-plan.data.shards // schedule.workers), layout.size * sums_of(plan).result.itemsize
    if plan.data.privacy is not None:  # one at a time, and the own sum, of integers
        return result + trained * _FLOAT32 + layout.size * exact.INTEGERS.dtype.itemsize
    if plan.update.compression is not None:  # all until the vote, with what they kept, in which they may lie
        if plan.encodes_on_device:
            return result + trained * (1 + hosted * (2 if feedback else 1)) * _FLOAT32
        return result + trained * hosted * (3 if feedback else 1) * _FLOAT32
    gradients = 1 if plan.sums_stay_on_device else min(hosted, most_waiting(layout.size))
    return trained * gradients * _FLOAT32


def _summing_bytes(layout: Layout, schedule: Schedule, plan: Plan, ranks: Sequence[int] | None) -> int:
    """For sums, where they are made."""
    if plan.update.compression is not None:
        return 0
    if plan.data.privacy is None:
        return _most_region_bytes(layout, schedule, sums_of(plan), ranks)
    integers = exact.INTEGERS
    masks = plan.encodes_on_device and plan.exchange.masked  # a copy of the own sum, where they are added
    return layout.size * integers.dtype.itemsize * masks + _most_region_bytes(layout, schedule, integers, ranks)


def first_schedule(plan: Plan) -> Schedule:
    """The schedule of the first generation. If members may be on several nodes, it is made as if each were on its own: nobody
    needs more then."""
    topology, workers = plan.exchange.topology, plan.cluster.members.start
    nodes = range(workers) if plan.exchange.between_nodes else ()
    return build_schedule(topology.name, workers, nodes=nodes, **topology.options)


def remembered(plan: Plan) -> float | None:
    """How many elements the optimizer remembers of each trained one; None for one of the pipeline's own."""
    optimizer = plan.update.optimizer
    return None if optimizer is None else optimizers.remembered(optimizer.name, optimizer.options)


def require_for_a_step(layout: Layout, plan: Plan) -> None:
    """Raises MemoryError where a worker in lockstep, whose parameters are here, has not the memory now for one gradient, its
    sum and the optimizer's state: a run that would end in its first steps."""
    schedule = first_schedule(plan)
    trained = sum(slot.elements for slot in layout.slots)
    regions = _most_region_bytes(layout, schedule, sums_of(plan))
    needed = regions + round(trained * (1 + (remembered(plan) or 0)) * _FLOAT32)
    require(needed, f"at least {megabytes(needed)} beside the {trained:,} parameters that it trains")


def require(needed: int, told: str) -> None:
    """Raises MemoryError where so many bytes are not there now. told: what a worker needs, in words."""
    available = available_bytes()
    if needed > available:
        raise MemoryError(f"a worker needs {told}, and {megabytes(available)} of memory are available")


def sentence(parameters: int, needed: Needed, plan: Plan) -> str:
    """Says what a worker of the first generation needs that has the whole model."""
    without = ", without what the optimizer of the pipeline remembers" if remembered(plan) is None else ""
    return f"each worker holds {parameters:,} parameters and needs about {needed} for them{without}"


def sums_of(plan: Plan) -> exact.Sums:
    if not plan.lockstep:
        return exact.INTEGERS
    return exact.MEANS if plan.exchange.exact else exact.FAST_MEANS
