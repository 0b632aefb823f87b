"""After the training: may rows be answered apart when the model is served? Tried with samples, where it has been trained.

What it does not do: serve (`orchestrator.worker.serving`).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from orchestrator.config.plan import Plan
from orchestrator.errors import OrchestratorError, few
from orchestrator.numerics import batch_invariance, determinism, inductor
from orchestrator.numerics.batch_invariance import InvarianceTrial
from orchestrator.numerics.streams import seeded
from orchestrator.pipeline import naming
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter

UNFIT = "it could not be tried with what example() gives; write example() or predict() in the pipeline (docs/models.md)"
_KEYS = 5  # in a sentence


def answers(plan: Plan, workload: PipelineAdapter) -> dict[str, Any]:
    """What was found, as plain data; of a run with noise nothing that is of its samples."""
    if plan.cluster.members.stages > 1:
        found = InvarianceTrial(None, "no worker had the whole model to try it")
    else:
        found = _tried_eagerly(plan, workload)
    if plan.data.privacy is not None:
        found = dataclasses.replace(found, detail=None)
    return dataclasses.asdict(found)


def _tried_eagerly(plan: Plan, workload: PipelineAdapter) -> InvarianceTrial:
    """As it is served: nothing compiles there."""
    with inductor.left_out() if plan.run.compute.compiled else nullcontext():
        return _tried(workload, plan.run.seed, plan.run.compute.arithmetic)


def _tried(workload: PipelineAdapter, seed: int, arithmetic: determinism.Arithmetic) -> InvarianceTrial:
    determinism.prepare_thread(1, arithmetic=arithmetic)
    given: Any = None
    try:
        with seeded(seed, "predict"):
            given = workload.samples(batch_invariance.EXAMPLES)
            with naming("example()"):
                inputs = given = workload.pipeline.example(given)
            with naming("predict()"), _asked(workload.model) as model, torch.no_grad():
                return batch_invariance.tried(lambda rows: workload.pipeline.predict(model, rows), inputs)
    except OrchestratorError as error:
        raised = error.message.partition("\n")[0].rstrip(": ")
        return InvarianceTrial(None, UNFIT, raised if given is None else f"{raised}; it was given {_kind(given)}")


def _kind(value: Any) -> str:
    """Of what a user's method was given: its type, and what is in it."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}, shape {list(value.shape)}"
    name = f"a {type(value).__name__}"
    if isinstance(value, Mapping):
        return f"{name} of {few([str(key) for key in value], _KEYS)}"
    return f"{name} of {len(value)}" if isinstance(value, (tuple, list)) else name


@contextmanager
def _asked(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The model in evaluation mode and in host memory."""
    if any(each.device.type != "cpu" for each in (*model.parameters(), *model.buffers())):
        yield copy.deepcopy(model).cpu().eval()
        return
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield model.eval()
    finally:
        for module, mode in modes:
            module.training = mode
