"""Where the model of a run would be cut, found in this process before anything is started: model and data are made as a worker
makes them, and one micro-batch and one validation batch are computed."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from os import devnull
from typing import Any

from orchestrator.engine.model.replica import Replica
from orchestrator.engine.model.workload import Workload
from orchestrator.engine.stages.planning import plan_stages, summary
from orchestrator.errors import ConfigurationError, PipelineRaised
from orchestrator.numerics.determinism import left_as_it_was
from orchestrator.pipeline import find
from orchestrator.plan import Plan


@contextmanager
def prepared(plan: Plan) -> Iterator[tuple[Workload, Replica]]:
    """In silence: a worker says all this too. Leaves the process as it was."""
    with left_as_it_was(), warnings.catch_warnings(), open(devnull, "w") as nowhere, redirect_stdout(nowhere):
        warnings.simplefilter("ignore")
        source = plan.run.pipeline
        run = replace(plan.run, initial=None)  # whose values take no other memory, and move no border
        workload = Workload(find(source.target, source.args), run, plan.data)
        yield workload, Replica(workload.model, None, watches_all=False)


def rehearse_cuts(plan: Plan) -> dict[str, Any] | None:
    """As `planning.summary`; None for a model that is not cut, and where the pipeline itself raises, which its workers tell
    better. Raises ConfigurationError where the model cannot be cut so."""
    stages = plan.cluster.members.stages
    if stages == 1:
        return None
    try:
        with prepared(plan) as (workload, replica):
            return summary(plan_stages(workload, replica, stages), workload.model)
    except PipelineRaised as error:
        if error.details:  # a traceback
            return None
        raise ConfigurationError([f"cluster.stages: {error.message}"], error.remedy) from None
    finally:
        gc.collect()  # a model refers to itself
