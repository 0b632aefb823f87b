"""Before a run: where this model is cut, and the proof that it computes the same bits then. Every member does both by itself,
with the whole model, and all have to find the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch

from orchestrator.errors import Inconsistent, OrchestratorError, PipelineRaised
from orchestrator.numerics.batches import taken_apart
from orchestrator.pipeline import defines, naming
from orchestrator.worker.admission import proof
from orchestrator.worker.between_steps import evaluation
from orchestrator.worker.model.calls import Call
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.replica import Replica, parameters_of
from orchestrator.worker.pipeline_parallel import messages
from orchestrator.worker.pipeline_parallel.all_stages import WholeModel
from orchestrator.worker.pipeline_parallel.border_values import Generators
from orchestrator.worker.pipeline_parallel.cuts import Cuts, Way, choose, cut
from orchestrator.worker.pipeline_parallel.fake_tensors import freezing
from orchestrator.worker.pipeline_parallel.survey import Survey, survey

_REMEDY = "let stages begin elsewhere, by stages(self, model) of the pipeline, or set cluster.stages=1"
_A_COPY = "have loss() change a copy of its batch, such as dict(batch) or batch[0].clone()"


def plan_stages(workload: PipelineAdapter, replica: Replica, stages: int) -> Cuts:
    """Raises PipelineRaised where the model cannot be cut so, by name."""
    return cuts_of(surveyed(workload, replica), workload, replica, stages)


def cuts_of(surveys: dict[Way, Survey], workload: PipelineAdapter, replica: Replica, stages: int) -> Cuts:
    """The same from what was `surveyed`, which is so for any number of stages."""
    model = workload.model
    frozen = next((name for name, each in parameters_of(replica).items() if not each.requires_grad), None)
    if frozen is not None:
        raise freezing(frozen)
    names = [name for name, _ in [*model.named_parameters(), *model.named_buffers()]]
    sizes = {name: each.numel() for name, each in model.named_parameters() if each.requires_grad}
    with naming("stages()"):
        named = workload.pipeline.stages(model)
    undivided = [*_changing(replica), *(name for name, each in model.named_parameters() if _is_hooked(each))]
    borders = choose(surveys, stages, sizes, undivided) if named is None else _checked_names(list(named), stages)
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


def surveyed(workload: PipelineAdapter, replica: Replica, *, keeps: bool = False) -> dict[Way, Survey]:
    """One micro-batch and the first validation batch, each computed while every operation is looked at: once, and again where
    code reads values. keeps: as of `survey`, for the micro-batch."""
    readers: dict[Way, frozenset[str]] = dict.fromkeys(("training", "evaluation", "metrics"), frozenset())
    while True:
        surveys = _surveyed(workload, replica, readers, keeps=keeps)
        if all(found.reading <= readers[way] for way, found in surveys.items()):
            return surveys
        readers |= {way: readers[way] | found.reading for way, found in surveys.items()}


def _surveyed(
    workload: PipelineAdapter, replica: Replica, readers: Mapping[Way, frozenset[str]], *, keeps: bool
) -> dict[Way, Survey]:
    shard = next(shard for shard in range(workload.samples.order.shards) if workload.batches.rows(0, shard))
    surveys: dict[Way, Survey] = {}
    replica.begin_shard()
    with workload.call(0, shard) as call:
        surveys["training"] = survey(workload.model, call.make, readers=readers["training"], keeps=keeps)
    if workload.evaluation_batches:
        with evaluation.in_eval_mode(workload.model), workload.evaluation(-1, 0) as calls:
            surveys["evaluation"] = survey(workload.model, calls[0].make, readers=readers["evaluation"])
            if defines(type(workload.pipeline), "metrics"):
                surveys["metrics"] = survey(workload.model, calls[1].make, readers=readers["metrics"])
    replica.begin_shard()
    return surveys


def _as_it_is(batch: Any) -> Any:
    """To be compared before and after a call; None of a batch of other things than tensors in lists, tuples and dicts."""
    apart = taken_apart(batch)
    return None if apart is None else (apart[1], [(id(tensor), tensor._version) for tensor in apart[0]])


def _checked_names(named: Sequence[str], stages: int) -> list[str]:
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
    for name, module in model.named_modules():
        if module._backward_hooks or module._backward_pre_hooks:
            raise PipelineRaised(
                f"the module {name or 'model'!r} has a backward hook, which torch cannot set where a stage computes on shapes "
                "alone",
                "have its forward() call register_hook of a tensor in place of it, or set cluster.stages=1",
                code="stages.backward-hook",
            )
    for stage in range(cuts.stages):
        if not cuts.owned(stage) & trained:
            raise PipelineRaised(
                f"stage {stage} would hold no parameter that is trained", _REMEDY, code="stages.without-parameter"
            )
    changing = _changing(replica)
    for name in cuts.tied:
        if name in changing:
            raise PipelineRaised(
                f"the buffer {name!r} may change with each batch, and several stages use it",
                f"keep all that reads or changes it within one stage: {_REMEDY}",
                code="stages.buffer-shared",
            )
        parameter = parameters.get(name)
        if parameter is not None and _is_hooked(parameter):
            raise PipelineRaised(
                f"the parameter {name!r} has a hook on its gradient, of which several stages have a part",
                _REMEDY,
                code="stages.hook",
            )


def _changing(replica: Replica) -> set[str]:
    """The buffers that may change with each batch."""
    statistics = {slot.name for slot in replica.layout.slots[len(replica.parameters) :]}
    return statistics | replica.counters.keys() | replica.joined.keys()


def _is_hooked(parameter: torch.nn.Parameter) -> bool:
    """Whether its gradient is changed, or looked at, when all of it is there."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


class InStages:
    """The model of a worker as it is cut, stage by stage in one process (`proof.Anew`). It is cut when that is first needed,
    behind the first computations of the unsplit model."""

    def __init__(self, workload: PipelineAdapter, replica: Replica, stages: int) -> None:
        self._workload, self._replica, self._stages = workload, replica, stages
        self.seconds = [0.0] * stages  # that each stage has taken
        self._changed = False  # whether loss() has changed the batch, with which the next stage begins it again

    @cached_property
    def cuts(self) -> Cuts:
        """Raises PipelineRaised where the model cannot be cut so, by name."""
        return plan_stages(self._workload, self._replica, self._stages)

    @contextmanager
    def _split(self) -> Iterator[WholeModel]:
        """Within the block the model is computed in stages."""
        whole = WholeModel(self._workload.model, self.cuts)
        try:
            yield whole
        finally:
            whole.close()
            self.seconds = [one + more for one, more in zip(self.seconds, whole.seconds, strict=True)]

    def fingerprint(self, shard: int) -> str | None:
        return proof.fingerprint_sparing(self._workload, self._replica, shard, self._loss, kept=self.cuts.tied)

    def other_gradient(self, shard: int) -> Inconsistent:
        tensor = self._differing(shard)
        return Inconsistent(
            f"cut into {self.cuts.stages} stages at {', '.join(self.cuts.borders)} the model computes another gradient of "
            f"{tensor} than unsplit",
            f"{_A_COPY}; or {_REMEDY}" if self._changed else _REMEDY,
            code="stages.other-gradient",
        )

    def evaluated(self) -> str:
        return proof.exact_numbers(*self._evaluated())

    def other_evaluation(self) -> Inconsistent:
        with evaluation.in_eval_mode(self._workload.model), evaluation.restoring(self._replica):
            self._replica.begin_shard()
            expected = self._workload.evaluate(-1, 0)
        found = self._evaluated()
        return Inconsistent(
            f"cut into stages validation batch 0 gives {found} and unsplit {expected}",
            _REMEDY,
            code="stages.other-evaluation",
        )

    def _loss(self, step: int, shard: int) -> tuple[float, float] | None:
        """As `PipelineAdapter.loss`."""
        workload = self._workload
        if not workload.batches.rows(step, shard):
            return None
        with self._split() as whole, workload.call(step, shard) as call, self._batch_watched(call):
            judged = call.judged(whole.forward(call.make))
            if judged is None:
                return None
            loss, mean, weight = judged
            whole.backward(loss)
        return mean, weight

    @contextmanager
    def _batch_watched(self, call: Call) -> Iterator[None]:
        """Note whether the batch is changed within the block, and say so where that raises."""
        assert call.given is not None
        batch, raised = call.given.batch, None
        before = _as_it_is(batch)
        try:
            yield
        except Exception as error:
            raised = error
        self._changed = self._changed or _as_it_is(batch) != before
        if raised is None:
            return
        if not self._changed or isinstance(raised, OrchestratorError):
            raise raised
        raise PipelineRaised(
            f"loss() ({call.where}) changes its batch, with which a later stage begins it again: {raised}",
            _A_COPY,
            code="stages.batch-changed",
        ) from raised

    def _differing(self, shard: int) -> str:
        """The first tensor of the layout that comes out differently."""
        replica, found = self._replica, []
        for compute in (self._workload.loss, self._loss):
            replica.begin_shard()
            compute(0, shard)
            found.append([None if each is None else each.clone() for each in replica.contribution()])
            replica.forget()
        for slot, one, other in zip(replica.layout.slots, *found, strict=True):
            if (one is None) != (other is None) or (
                one is not None and other is not None and not torch.equal(one, other)
            ):
                return str(slot.name)
        return "some parameter in some bit"

    def _evaluated(self) -> tuple[list[str], list[float]]:
        workload = self._workload
        with self._split() as whole, evaluation.in_eval_mode(workload.model), evaluation.restoring(self._replica):
            self._replica.begin_shard()
            has_metrics = defines(type(workload.pipeline), "metrics")
            with workload.evaluation(-1, 0) as calls:
                seeded = Generators.now()
                loss = whole.forward(calls[0].make, "evaluation")
                if has_metrics and not self.cuts.draws:
                    messages.check_undrawn(seeded)
                metrics = whole.forward(calls[1].make, "metrics") if has_metrics else {}
                return calls[0].evaluated(loss, metrics)
