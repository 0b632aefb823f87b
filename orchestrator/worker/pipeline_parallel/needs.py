"""The memory that a worker needs for a model in one stage, in two, and so on, found in this process without starting
anything.

Model and data are made as a worker makes them, and where the whole model does not do, one micro-batch is computed, to see where
it can be cut (`planning.py`). For a GPU that is done in any case, and what autograd keeps of the micro-batch is counted: on a
GPU nothing else may take the place of activations.

It does not know batches, what a pass takes beside activations (`worker.footprint`), nor what CUDA graphs keep of gradients:
where a GPU has no room for graphs, passes are eager.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping

from orchestrator.comm.pipeline_schedules import groups_of, programs
from orchestrator.config.plan import Plan
from orchestrator.controller.shard_assignment import assign_columns, assign_stages, hosts_of
from orchestrator.worker.footprint import Needed, first_schedule, worker_needs
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.pipeline_parallel.cuts import Way, activations
from orchestrator.worker.pipeline_parallel.flight import most_under_way
from orchestrator.worker.pipeline_parallel.footprint import by_stage, preparing_bytes
from orchestrator.worker.pipeline_parallel.planning import cuts_of, summary, surveyed
from orchestrator.worker.pipeline_parallel.rehearsal import prepared
from orchestrator.worker.pipeline_parallel.survey import Survey

_FLOAT32 = 4  # bytes


def needs(plan_of: Callable[[int], Plan], most: int) -> Generator[tuple[int, Needed]]:
    """(stages, what the worker has that needs most of its GPU or, where none computes, of host memory), from one stage on.
    plan_of: of the run in so many stages, which may refuse them by an error. Raises PipelineRaised where the model cannot be
    cut into so many."""
    plan = plan_of(1)
    on_card = plan.run.compute.device == "cuda"
    with prepared(plan) as (workload, replica):
        parameters = sum(parameter.numel() for parameter in workload.model.parameters())
        surveys = surveyed(workload, replica, keeps=on_card) if on_card else {}
        yield 1, _of_one(plan, replica, parameters, surveys)
        surveys = surveys or (surveyed(workload, replica) if most > 1 else {})
        for stages in range(2, most + 1):
            yield stages, _of_many(plan_of(stages), workload, replica, parameters, surveys)


def under_way(plan: Plan) -> tuple[int, ...]:
    """By stage, of how many micro-batches its workers keep the activations at most."""
    stages, workers = plan.cluster.members.stages, plan.cluster.members.start
    if stages == 1 or plan.recompute:
        return (1,) * stages
    stage_of = assign_stages([None] * workers, stages)
    hosts = hosts_of(stage_of, assign_columns(plan.data.shards, stage_of))
    most = [most_under_way(each) for each in programs(hosts, plan.pipelining.name, plan.pipelining.options)]
    return tuple(max(most[rank] for rank in group) for group in groups_of(hosts))


def _of_one(plan: Plan, replica: Replica, parameters: int, surveys: Mapping[Way, Survey]) -> Needed:
    held = worker_needs(replica.layout, first_schedule(plan), plan, parameters=parameters)
    if not surveys:
        return held
    (kept,) = activations(surveys["training"], ())
    return Needed(max(held.host, parameters * _FLOAT32), held.card + kept)  # model() makes it in host memory


def _of_many(
    plan: Plan, workload: PipelineAdapter, replica: Replica, parameters: int, surveys: dict[Way, Survey]
) -> Needed:
    cuts = cuts_of(surveys, workload, replica, plan.cluster.members.stages)
    kept = activations(surveys["training"], cuts.borders)
    held = by_stage(summary(cuts, workload.model), plan)
    card = max(each.card + size * count for each, size, count in zip(held, kept, under_way(plan), strict=True))
    return Needed(max(preparing_bytes(parameters), *(each.host for each in held)), card)
