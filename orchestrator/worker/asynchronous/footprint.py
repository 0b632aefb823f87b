"""How much memory a worker needs for a model whose replicas run free. Pure.

Bytes for each element of the layout, where a worker hosts s shards, an optimizer remembers m elements of each, and w is the
window of deltas:

    regions         16 + partial sums, 8 w, 8 w for each other worker's delta that it hands on
    replica         8 parameters as integers, 4 as of the last rest in float32, 8 not sent yet
    an update       4 before, 4 gradient, 8 the update; with a significance filter 8 s held back
    optimizers      4 m s twice: in use, and as of the last rest
    a model each    of gossip, instead of replica and deltas: 8 s four times, with those before a step and its updates, and 8
                    of each foreign neighbour

With a GPU all this is in its memory.

For memory that it does not count see `worker/footprint.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from orchestrator.comm.topologies.routes import Routes
from orchestrator.comm.topologies.schedule import Schedule
from orchestrator.config.plan import Plan
from orchestrator.controller.shard_assignment import assign_shards
from orchestrator.numerics.layout import Layout
from orchestrator.worker.asynchronous.deltas import window_of
from orchestrator.worker.asynchronous.gossip import Mixing
from orchestrator.worker.footprint import Needed, ranks_that_tell, region_bytes, remembered, sums_of

_FLOAT: Final = 4
_INTEGER: Final = 8


def delta_bytes(layout: Layout, schedule: Schedule, rank: int) -> int:
    """The size of this worker's regions for deltas in a generation, if it is its first."""
    window, routes = window_of(layout.size), Routes(schedule)
    borders = layout.borders(routes.slices)
    relayed = sum(borders[part + 1] - borders[part] for _, part in routes.relays(rank))
    return _INTEGER * window * (layout.size + relayed)


def worker_needs(
    layout: Layout,
    schedule: Schedule,
    plan: Plan,
    *,
    parameters: int,
    ranks: Sequence[int] | None = None,
) -> Needed:
    """As `worker.footprint.worker_needs`, for async phases and gossip."""
    hosted = assign_shards(plan.data.shards, schedule.workers)
    trained = sum(slot.elements for slot in layout.slots)
    looked_at = ranks_that_tell(schedule.workers) if ranks is None else ranks
    optimizers = round(_FLOAT * max(len(hosted[rank]) for rank in looked_at) * trained * (remembered(plan) or 0))
    most = max(_rank_bytes(layout, schedule, plan, hosted, rank) for rank in looked_at)
    if plan.updates_stay_on_device:  # beside the replica are the gradients of a pass
        return Needed(0, most + 2 * optimizers + _FLOAT * (parameters + trained))
    return Needed(most + 2 * optimizers + _FLOAT * parameters)


def waiting_bytes(layout: Layout, plan: Plan) -> int:
    """The bytes of a GPU that a worker holds before its first generation, beside `worker.footprint.waiting_bytes`."""
    deltas = 0 if plan.mode.graph is not None else _INTEGER * (window_of(layout.size) + 2)
    return (deltas + 2 * _FLOAT) * layout.size


def given_to_passes(layout: Layout) -> int:
    """The bytes of a GPU that a worker does not have while it computes a micro-batch: an update, and what was before it."""
    return (_FLOAT + _INTEGER) * layout.size


def _rank_bytes(layout: Layout, schedule: Schedule, plan: Plan, hosted: Sequence[Sequence[int]], rank: int) -> int:
    """But for parameters and optimizers."""
    shards, size = len(hosted[rank]), layout.size
    found = region_bytes(layout, schedule, rank, sums_of(plan)) + (_FLOAT * 3 + _INTEGER) * size  # update, last rest
    if plan.mode.graph is not None:
        needed = Mixing.of(plan.mode.graph, plan.data.shards).needed(hosted)
        foreign = sum(rank in workers for shard, workers in needed.items() if shard not in hosted[rank])
        return found + _INTEGER * size * (4 * shards + foreign)
    if plan.replay:  # a reader for each shard, and no deltas on their way
        return found + delta_bytes(layout, schedule, rank) + _INTEGER * size * (2 + shards)
    filtered = shards if plan.mode.threshold else 0
    return found + delta_bytes(layout, schedule, rank) + _INTEGER * size * (2 + filtered)
