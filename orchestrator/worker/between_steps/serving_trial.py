"""Trials of how the trained model answers: may rows be answered apart when it is served? Tried with samples, after the
training, by a worker.

A trial at the launch tells whether `predict` can be called at all with what the default `example` gives, so that nobody
learns that only when the training is over. If a batch is one tensor of tokens, `predict` is given all of them; if it does not
take that, all but the last, as language models are trained.

It does not serve (`orchestrator.worker.serving`).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch

from orchestrator.adapters.adapted import Adapted
from orchestrator.config.plan import Plan
from orchestrator.errors import OrchestratorError, few
from orchestrator.numerics import batch_invariance, determinism, inductor
from orchestrator.numerics.batch_invariance import InvarianceTrial
from orchestrator.numerics.streams import seeded
from orchestrator.pipeline import Pipeline, defines, naming
from orchestrator.worker.model import snapshot
from orchestrator.worker.model.layer_modes import modes_of, put_back
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter

UNFIT = "it could not be tried with what example() gives; write example() or predict() in the pipeline (docs/models.md)"
UNFIT_MODULE = (
    "it could not be tried with the first part of a batch; let forward() of the module take that (docs/models.md)"
)
_KEYS = 5  # in a sentence
_TOKENS = (torch.int64, torch.int32, torch.int16, torch.uint8)
TOO_LARGE = "its trial would take a processor long (docs/models.md)"
_MOST_FLOPS = 5e11  # of a trial: 5 to 10 seconds of one thread
_CALLED = 5  # tiles of a trial, for each row of it.
_PASSES = 3  # A step has as many times the operations of an answer.
_FEWEST = 3  # Two rows may have the same place in their tiles, and neither has the other beside it.
_MOST_COPIED = 2**28  # parameters of a model that is copied and asked before the first step


def answers(plan: Plan, workload: PipelineAdapter, flops_per_sample: float | None = None) -> dict[str, Any]:
    """The finding, as plain data; of a private run without what comes from its samples. flops_per_sample: as
    `worker.admission.proof` counts them; None where nobody has."""
    if plan.cluster.members.stages > 1:
        found = InvarianceTrial(None, "no worker had the whole model to try it")
    else:
        found = _tried_eagerly(plan, workload, flops_per_sample)
    if plan.data.privacy is not None:
        found = dataclasses.replace(found, detail=None)
    return dataclasses.asdict(found)


def _tried_eagerly(plan: Plan, workload: PipelineAdapter, flops_per_sample: float | None) -> InvarianceTrial:
    """A trial without compiled code, as the model is served."""
    with inductor.left_out() if plan.run.compute.compiled else nullcontext():
        return _tried(workload, plan.run.seed, plan.run.compute.arithmetic, flops_per_sample)


def unfit(plan: Plan, workload: PipelineAdapter) -> dict[str, Any] | None:
    """Why `answers` could try nothing after the training; None if it could, or if that is not known. Called before the first
    step, for pipelines whose user leaves `example` and `predict` as they are. A copy of the model is asked, so the model stays
    as it is."""
    kind, is_staged = type(workload.pipeline), plan.cluster.members.stages > 1
    if is_staged or any(
        not getattr(kind, name).__module__.startswith("orchestrator.") for name in ("example", "predict")
    ):
        return None
    if workload.batches.streams is not None and not workload.held_out:
        return None
    try:
        if sum(each.numel() for each in workload.model.parameters()) > _MOST_COPIED:
            return None
        model = copy.deepcopy(workload.model).eval()
    except Exception:  # of the user's classes: what cannot be trained is refused in other words
        return None
    # A forward() that was given to an object is copied as it is, and calls layers of the model itself.
    with _modes_put_back(workload.model), snapshot.put_back(workload.model):
        for module in workload.model.modules():
            module.training = False  # without its train(), which may merge weights
        found = _with_samples(workload, plan.run.seed, 1, nullcontext(model), _called)
    if found.rows is not None:
        return None
    return {"why": found.why, **({} if plan.data.privacy is not None else {"detail": found.detail})}


def _called(call: Callable[[Any], Any], inputs: Any) -> InvarianceTrial:
    call(inputs)
    return InvarianceTrial(batch_invariance.ROWS)


def _tried(
    workload: PipelineAdapter,
    seed: int,
    arithmetic: determinism.Arithmetic,
    flops_per_sample: float | None = None,
) -> InvarianceTrial:
    determinism.prepare_thread(1, arithmetic=arithmetic)
    rows = rows_to_try(flops_per_sample)
    if not rows:
        return InvarianceTrial(None, TOO_LARGE)
    return _with_samples(workload, seed, rows, _in_evaluation(workload.model), batch_invariance.tried)


def rows_to_try(flops_per_sample: float | None) -> int:
    """How many rows a trial takes: as many as one thread can afford, 0 where too few would be left. Pure. A model that was
    trained on a GPU may take a processor minutes for what the GPU does in a step."""
    if not flops_per_sample:
        return batch_invariance.EXAMPLES
    found = int(_MOST_FLOPS // (_CALLED * batch_invariance.ROWS * flops_per_sample / _PASSES))
    if found < _FEWEST:
        return 0
    return min(found - (found == batch_invariance.ROWS), batch_invariance.EXAMPLES)


def _with_samples(
    workload: PipelineAdapter,
    seed: int,
    rows: int,
    asked: AbstractContextManager[torch.nn.Module],
    trial: Callable[[Callable[[Any], Any], Any], InvarianceTrial],
) -> InvarianceTrial:
    """The finding of a trial with the first inputs that `predict` takes."""
    pipeline, given = workload.pipeline, None
    try:
        with seeded(seed, "predict"):
            given = workload.first_batch(rows)
            with naming("example()"):
                inputs = given = pipeline.example(given)
            with asked as model, torch.no_grad():
                return _first_taken(pipeline, inputs, lambda rows: trial(partial(pipeline.predict, model), rows))
    except OrchestratorError as error:
        raised = error.message.partition("\n")[0].rstrip(": ")
        why = UNFIT_MODULE if isinstance(pipeline, Adapted) else UNFIT
        return InvarianceTrial(None, why, raised if given is None else f"{raised}; it was given {_kind(given)}")


def _first_taken(pipeline: Pipeline, inputs: Any, trial: Callable[[Any], InvarianceTrial]) -> InvarianceTrial:
    """Try the inputs, then the rows without their last token. Raises the error of the inputs as they came if neither is
    taken."""
    shorter = _without_last(pipeline, inputs)
    try:
        with naming("predict()"):
            return trial(inputs)
    except OrchestratorError:
        if shorter is not None:
            with suppress(OrchestratorError), naming("predict()"):
                return trial(shorter)
        raise


def _without_last(pipeline: Pipeline, inputs: Any) -> torch.Tensor | None:
    """Rows of tokens without the last one, which is only predicted. None for other inputs, and if the user's `example` says
    what the model is given."""
    if defines(type(pipeline), "example") or not isinstance(inputs, torch.Tensor) or inputs.dim() != 2:
        return None
    return inputs[:, :-1] if inputs.dtype in _TOKENS and inputs.shape[1] > 1 else None


def _kind(value: Any) -> str:
    """Describes a value that a user's method was given: its type, and what is in it."""
    if isinstance(value, torch.Tensor):
        if value.is_nested:  # whose shape torch may refuse to tell
            return f"a nested tensor of {str(value.dtype).removeprefix('torch.')}"
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}, shape {list(value.shape)}"
    name = f"a {type(value).__name__}"
    if isinstance(value, Mapping):
        return f"{name} of {few([str(key) for key in value], _KEYS)}"
    return f"{name} of {len(value)}" if isinstance(value, (tuple, list)) else name


@contextmanager
def _in_evaluation(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The model in evaluation mode and in host memory."""
    if any(each.device.type != "cpu" for each in (*model.parameters(), *model.buffers())):
        yield copy.deepcopy(model).cpu().eval()
        return
    with _modes_put_back(model):
        yield model.eval()


@contextmanager
def _modes_put_back(model: torch.nn.Module) -> Iterator[None]:
    modes = modes_of(model)
    try:
        yield
    finally:
        put_back(modes)
