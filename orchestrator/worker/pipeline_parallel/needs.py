"""The memory that a worker needs for a model in one stage, in two, and so on, found in this process without starting
anything.

Model and data are made as a worker makes them, and where the whole model does not do, one micro-batch is computed, to see where
it can be cut (`planning.py`).

It does not know activations and batches (`voting.footprint`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from orchestrator.config.plan import Plan
from orchestrator.worker.pipeline_parallel.footprint import preparing_bytes, stage_needs
from orchestrator.worker.pipeline_parallel.planning import cuts_of, summary, surveyed
from orchestrator.worker.pipeline_parallel.rehearsal import prepared
from orchestrator.worker.voting.footprint import first_schedule, remembered, worker_needs


def needs(plan_of: Callable[[int], Plan], most: int) -> Generator[tuple[int, int]]:
    """(stages, bytes of the worker that needs most), from one stage on. plan_of: of the run in so many stages, which may refuse
    them by an error. Raises PipelineRaised where the model cannot be cut into so many."""
    plan = plan_of(1)
    with prepared(plan) as (workload, replica):
        parameters = sum(parameter.numel() for parameter in workload.model.parameters())
        schedule, state = first_schedule(plan), remembered(plan)
        yield 1, worker_needs(replica.layout, schedule, plan, parameters=parameters, state=state).host
        surveys = surveyed(workload, replica) if most > 1 else {}
        for stages in range(2, most + 1):
            cut = summary(cuts_of(surveys, workload, replica, stages), workload.model)
            held = stage_needs(max(cut["parameters"]), plan_of(stages)).host
            yield stages, max(held, preparing_bytes(parameters))
