"""How much memory a worker needs for a model: what its regions hold, and what the parameters need beside them. Pure, but for
`require` and `require_for_a_step`.

What it does not know: activations, batches, temporaries, copies for checkpoints; the regions of a compression, which are small
beside what it holds; nor what the optimizer of a pipeline remembers before it has taken a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from orchestrator.comm.collectives import partial_places
from orchestrator.comm.topologies import build_schedule
from orchestrator.comm.topologies.schedule import Schedule
from orchestrator.comm.transports.available_memory import available_bytes
from orchestrator.common.values import megabytes
from orchestrator.config.plan import Plan
from orchestrator.numerics import exact
from orchestrator.numerics.layout import Layout, most_waiting
from orchestrator.optim import optimizers

_FLOAT32: Final = int(torch.float32.itemsize)


def region_bytes(layout: Layout, schedule: Schedule, rank: int, sums: exact.Sums) -> int:
    """The size of this member's regions in a generation, if it is its first."""
    kept: int = sum(place.stop - place.start for place in partial_places(layout, schedule, rank).values())
    contributed = layout.size if rank < schedule.workers else 0
    return (contributed + kept) * sums.dtype.itemsize + layout.size * sums.result.itemsize


def worker_bytes(
    layout: Layout,
    schedule: Schedule,
    plan: Plan,
    *,
    parameters: int,
    state: float | None = None,
    feedback: bool = False,
) -> int:
    """What the worker that needs most has for parameters, gradients, sums and the state of the optimizer. parameters: elements,
    frozen ones too; state: elements that the optimizer remembers of each trained one; feedback: whether shards keep what a
    compression drops."""
    trained = sum(slot.elements for slot in layout.slots)
    hosted = -(-plan.data.shards // schedule.workers)
    gradients: float = min(hosted, most_waiting(layout.size))
    sums = sums_of(plan)
    regions = max(region_bytes(layout, schedule, rank, sums) for rank in range(schedule.workers))
    if plan.update.compression is not None:  # held until the vote, with what they kept and what they keep
        gradients = hosted * (3 if feedback else 1)
        regions = layout.size * sums.result.itemsize
    if plan.data.privacy is not None:  # integers: the own sum beside the regions; float64 of a single contribution
        regions = layout.size * sums.result.itemsize + max(
            region_bytes(layout, schedule, rank, exact.INTEGERS) for rank in range(schedule.workers)
        )
        gradients = 1 + 2 * 2
    gradients += plan.update.clip is not None
    local = plan.update.local
    if local is not None:  # where the round began, and what the local optimizer remembers
        gradients += 1 + optimizers.remembered(local.optimizer.name, local.optimizer.options)
    return regions + round((parameters + trained * (gradients + (state or 0))) * _FLOAT32)


def first_schedule(plan: Plan) -> Schedule:
    """Of the first generation. Where members may be on several nodes, as if each were on its own: nobody needs more then."""
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
    regions = max(region_bytes(layout, schedule, rank, sums_of(plan)) for rank in range(schedule.workers))
    needed = regions + round(trained * (1 + (remembered(plan) or 0)) * _FLOAT32)
    require(needed, f"at least {megabytes(needed)} beside the {trained:,} parameters that it trains")


def require(needed: int, told: str) -> None:
    """Raises MemoryError where so many bytes are not there now. told: what a worker needs, in words."""
    available = available_bytes()
    if needed > available:
        raise MemoryError(f"a worker needs {told}, and {megabytes(available)} of memory are available")


def sentence(run_manifest: Mapping[str, Any], plan: Plan, bytes_of: Callable[..., int] = worker_bytes) -> str | None:
    """What a worker of the first generation needs, in words; None where the workers have not told their parameters. bytes_of:
    as `worker_bytes`, of this way to execute the run."""
    if "parameters" not in run_manifest:
        return None
    state = remembered(plan)
    if "stages" in run_manifest:
        return _of_stages(run_manifest["stages"], run_manifest["parameters"], plan, state or 0.0)
    layout, parameters = Layout.from_dict(run_manifest["layout"]), run_manifest["parameters"]
    feedback = run_manifest["shard_state"]
    size = bytes_of(layout, first_schedule(plan), plan, parameters=parameters, state=state, feedback=feedback)
    without = ", without what the optimizer of the pipeline remembers" if state is None else ""
    return f"each worker holds {parameters:,} parameters and needs about {megabytes(size)} for them{without}"


def _of_stages(stages: Mapping[str, Any], parameters: int, plan: Plan, state: float) -> str:
    """Where the model is cut, what each stage holds and about needs for it, and its part of the computation. state: as for
    `worker_bytes`."""
    begins = ["the first layers", *stages["borders"]]
    lines = [
        f"stage {i} from {begin} ({held:,} parameters, {megabytes(stage_bytes(held, plan, state))}, "
        f"{share:.0%} of the computation)"
        for i, (begin, held, share) in enumerate(zip(begins, stages["parameters"], stages["shares"], strict=True))
    ]
    return f"the model of {parameters:,} parameters is cut: {', '.join(lines)}"


def stage_bytes(parameters: int, plan: Plan, state: float) -> int:
    """About what a worker needs that hosts a stage of so many parameters, without partial sums."""
    sums, stages = sums_of(plan), plan.cluster.members.stages
    hosted = -(-plan.data.shards // max(1, plan.cluster.members.start // stages))
    held = 1 + min(hosted, max(2, most_waiting(parameters))) + (plan.update.clip is not None) + state
    return round(parameters * (sums.dtype.itemsize + sums.result.itemsize + held * _FLOAT32))


def sums_of(plan: Plan) -> exact.Sums:
    if not plan.lockstep:
        return exact.INTEGERS
    return exact.MEANS if plan.exchange.exact else exact.FAST_MEANS
