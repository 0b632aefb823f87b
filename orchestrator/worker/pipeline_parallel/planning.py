"""Before a run: where this model is cut, and the proof that it computes the same bits then. Every member does both by itself,
with the whole model, and all have to find the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from orchestrator.errors import Inconsistent, PipelineRaised
from orchestrator.pipeline import defines, naming
from orchestrator.worker.admission import proof
from orchestrator.worker.between_steps import evaluation
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.pipeline_parallel import messages
from orchestrator.worker.pipeline_parallel.border_values import Generators
from orchestrator.worker.pipeline_parallel.cuts import Cuts, Way, choose, cut
from orchestrator.worker.pipeline_parallel.survey import Survey, survey
from orchestrator.worker.pipeline_parallel.whole import WholeModel

_REMEDY = "let stages begin elsewhere, by stages(self, model) of the pipeline, or set cluster.stages=1"


def plan_stages(workload: PipelineAdapter, replica: Replica, stages: int) -> Cuts:
    """Raises PipelineRaised where the model cannot be cut so, by name."""
    return cuts_of(surveyed(workload, replica), workload, replica, stages)


def cuts_of(surveys: dict[Way, Survey], workload: PipelineAdapter, replica: Replica, stages: int) -> Cuts:
    """The same from what was `surveyed`, which is so for any number of stages."""
    model = workload.model
    names = [name for name, _ in [*model.named_parameters(), *model.named_buffers()]]
    sizes = {name: each.numel() for name, each in model.named_parameters() if each.requires_grad}
    with naming("stages()"):
        named = workload.pipeline.stages(model)
    borders = choose(surveys, stages, sizes) if named is None else _of(list(named), stages)
    cuts = cut(surveys, borders, names)
    _refuse(model, replica, cuts)
    return cuts


def summary(cuts: Cuts, model: torch.nn.Module) -> dict[str, Any]:
    """For the run manifest: where the model is cut, by stage its parameters and its part of the computation, and by border the
    bytes that cross."""
    sizes = {name: each.numel() for name, each in model.named_parameters()}
    parameters = [sum(sizes.get(name, 0) for name in cuts.owned(stage)) for stage in range(cuts.stages)]
    return {
        "borders": list(cuts.borders),
        "parameters": parameters,
        "shares": [round(share, 4) for share in cuts.shares],
        "crossing": list(cuts.crossing),
    }


def verify(workload: PipelineAdapter, replica: Replica, cuts: Cuts, reference: str) -> list[float]:
    """Returns the seconds that each stage has taken. Raises Inconsistent where a micro-batch or a validation batch comes out
    differently in stages. reference: of micro-batch (0, 0), unsplit; empty where that fails, as the first step will."""
    whole = WholeModel(workload.model, cuts)
    try:
        if reference:
            compute = lambda step, shard: _loss(workload, whole, step, shard)  # noqa: E731
            found = proof.fingerprint_sparing(workload, replica, 0, compute, kept=cuts.tied)
            if found != reference:
                raise Inconsistent(
                    f"cut into {cuts.stages} stages at {', '.join(cuts.borders)} the model computes another gradient of "
                    f"{_differing(workload, replica, whole)} than unsplit",
                    _REMEDY,
                    code="stages.other-gradient",
                )
        if reference and workload.evaluation_batches:
            _verify_evaluation(workload, replica, whole, cuts)
    finally:
        whole.close()
        replica.begin_shard()
    return whole.seconds


def surveyed(workload: PipelineAdapter, replica: Replica, *, keeps: bool = False) -> dict[Way, Survey]:
    """One micro-batch and the first validation batch, each computed once while every operation is looked at. keeps: as of
    `survey`, for the micro-batch."""
    shard = next(shard for shard in range(workload.order.shards) if workload.rows(0, shard))
    surveys: dict[Way, Survey] = {}
    replica.begin_shard()
    with workload.call(0, shard) as call:
        surveys["training"] = survey(workload.model, call.make, keeps=keeps)
    if workload.evaluation_batches:
        with evaluation.in_eval_mode(workload.model), workload.evaluation(-1, 0) as calls:
            surveys["evaluation"] = survey(workload.model, calls[0].make)
            if defines(type(workload.pipeline), "metrics"):
                surveys["metrics"] = survey(workload.model, calls[1].make)
    replica.begin_shard()
    return surveys


def _of(named: Sequence[str], stages: int) -> list[str]:
    if len(named) != stages - 1 or not all(isinstance(name, str) for name in named):
        raise PipelineRaised(
            f"stages() returned {named}, for {stages} stages",
            f"return the names of the {stages - 1} modules at which stages 1 to {stages - 1} begin, or None",
            code="stages.returned",
        )
    return list(named)


def _refuse(model: torch.nn.Module, replica: Replica, cuts: Cuts) -> None:
    trained = {slot.name for slot in replica.layout.slots[: len(replica.parameters)]}
    parameters = dict(model.named_parameters())
    for stage in range(cuts.stages):
        if not cuts.owned(stage) & trained:
            raise PipelineRaised(
                f"stage {stage} would hold no parameter that is trained", _REMEDY, code="stages.without-parameter"
            )
    changing = {slot.name for slot in replica.layout.slots[len(replica.parameters) :]}
    changing |= replica.counters.keys() | replica.joined.keys()
    for name in cuts.tied:
        if name in changing:
            raise PipelineRaised(
                f"the buffer {name!r} changes with each batch, and several stages use it",
                f"keep all that reads or changes it within one stage: {_REMEDY}",
                code="stages.buffer-shared",
            )
        parameter = parameters.get(name)
        if parameter is not None and (parameter._backward_hooks or parameter._post_accumulate_grad_hooks):
            raise PipelineRaised(
                f"the parameter {name!r} has a hook on its gradient, of which several stages have a part",
                _REMEDY,
                code="stages.hook",
            )


def _loss(workload: PipelineAdapter, whole: WholeModel, step: int, shard: int) -> tuple[float, float] | None:
    """As `PipelineAdapter.loss`."""
    if not workload.rows(step, shard):
        return None
    with workload.call(step, shard) as call:
        judged = workload.judge(whole.forward(call.make), call)
        if judged is None:
            return None
        loss, mean, weight = judged
        whole.backward(loss)
    return mean, weight


def _differing(workload: PipelineAdapter, replica: Replica, whole: WholeModel) -> str:
    """The first tensor of the layout that comes out differently."""
    found = []
    for compute in (workload.loss, lambda step, shard: _loss(workload, whole, step, shard)):
        replica.begin_shard()
        compute(0, 0)
        found.append([None if each is None else each.clone() for each in replica.contribution()])
        replica.forget()
    for slot, one, other in zip(replica.layout.slots, *found, strict=True):
        if (one is None) != (other is None) or (one is not None and other is not None and not torch.equal(one, other)):
            return str(slot.name)
    return "some parameter in some bit"


def _verify_evaluation(workload: PipelineAdapter, replica: Replica, whole: WholeModel, cuts: Cuts) -> None:
    with evaluation.in_eval_mode(workload.model), evaluation.restoring(replica):
        replica.begin_shard()
        expected = workload.evaluate(-1, 0)
        replica.begin_shard()
        has_metrics = defines(type(workload.pipeline), "metrics")
        with workload.evaluation(-1, 0) as calls:
            seeded = Generators.now()
            loss = whole.forward(calls[0].make, "evaluation")
            if has_metrics and not cuts.draws:
                messages.check_undrawn(seeded)
            metrics = whole.forward(calls[1].make, "metrics") if has_metrics else {}
            found = workload.evaluated(calls[0], loss, metrics)
    if repr(found) != repr(expected):
        raise Inconsistent(
            f"cut into stages validation batch 0 gives {found} and unsplit {expected}",
            _REMEDY,
            code="stages.other-evaluation",
        )
