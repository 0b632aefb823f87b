"""Admission by proof (rule B4): a worker shows that it computes the bits of the others before it may take part.

Micro-batch 0 is computed, then micro-batch 1, then 0 again. This exposes a pipeline that keeps state, by other bits or by
changes in its objects. The first time, memory that nobody has written is filled, which exposes an operation that reads it.
The same is done with validation batches, since decisions may follow from metrics; so an error in metrics() is reported before
the training and not after it.

A model that is to be cut into stages is cut for the last computation (`Anew`). So one pass shows both: the batch comes out
equally behind another one, and equally in stages.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import struct
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from orchestrator.adapters.adapted import Adapted
from orchestrator.checkpoint.state import digest as digest_of
from orchestrator.errors import Inconsistent, OrchestratorError, PipelineRaised
from orchestrator.numerics import determinism
from orchestrator.numerics.digests import update
from orchestrator.numerics.portable import used
from orchestrator.pipeline import naming
from orchestrator.worker.admission import state_detection, varying_operation
from orchestrator.worker.admission.varying_operation import Difference
from orchestrator.worker.between_steps import evaluation
from orchestrator.worker.model import construction
from orchestrator.worker.model.held_memory import hold_memory
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.replica import Replica, parameters_of, whole_gradients

Loss = Callable[[int, int], tuple[float, float] | None]

_NO_STATE = (
    "a pipeline must keep no state between batches and draw randomness only from torch, numpy or random; metrics are means "
    "over their own batch, put together here; docs/porting.md says how a memory, recurrent state or a schedule is written"
)


class Anew(Protocol):
    """Another way to compute what has been computed, which has to come out equally."""

    def fingerprint(self, shard: int) -> str | None:
        """As `fingerprint_sparing`."""

    def other_gradient(self, shard: int) -> Inconsistent:
        """The error where it comes out otherwise."""

    def evaluated(self) -> str:
        """The numbers of the first validation batch, as `exact_numbers` has them."""

    def other_evaluation(self) -> Inconsistent:
        """Likewise."""


def reference(workload: PipelineAdapter, replica: Replica, *, anew: Anew | None = None, compiles: bool = False) -> str:
    """A digest of all that the first micro-batch contributes; of the first validation batch if shards are pinned to sites,
    since a worker then reads only its own site's samples. Empty if there is none to compute, as with live samples. anew:
    computes it the last time, with whole gradients freed; compiles: whether code may be compiled, as the settings say. Raises
    Inconsistent; PipelineRaised for what may not be changed or used, and for a fault in the metrics."""
    compiled = _compiled()
    own, pinned = workload.samples.attendance.own, workload.samples.attendance.is_pinned
    take = fingerprint if anew is None else fingerprint_sparing
    verify = functools.partial(_verify, workload, fills=not compiles)
    first: str | None = ""
    if not workload.batches.is_live:
        what = f"micro-batch (step 0, shard {next(iter(own), 0)})"
        look = functools.partial(varying_operation.first_difference, workload, replica, watches=not compiles)
        differs = lambda: look(own[0]) if anew is None else None  # noqa: E731
        take_shard = lambda shard: take(workload, replica, shard)  # noqa: E731
        behind = lambda shard: _computed(workload, replica, shard, spares=anew is not None)  # noqa: E731
        of_shards = functools.partial(verify, what, own[:2], take_shard, behind=behind, differs=differs)
        first = of_shards(repeats=anew is None) or ("" if not own else None)
        if first:
            _refuse_former_memory(replica, what, functools.partial(take_shard, own[0]))
    if pinned and first is not None:
        common = range(min(1, len(workload.evaluation_batches)))
        of = lambda batch: fingerprint(workload, replica, batch, workload.loss_of_validation)  # noqa: E731
        first = verify("the gradient of validation batch 0", common, of) if common else ""
    in_another_way = anew if first else None
    evaluated = None
    if first is not None:  # else the words of the step come first
        batches = range(min(2, len(workload.evaluation_batches)))
        take_batch = lambda batch: _evaluated(workload, replica, batch)  # noqa: E731
        of_batches = functools.partial(verify, "validation batch 0", batches, take_batch)
        evaluated = of_batches(repeats=in_another_way is None)
        if evaluated is not None:
            _refuse_former_memory(replica, "validation batch 0", functools.partial(take_batch, 0))
    if in_another_way is not None:  # behind what looks at the model's objects, some of which it changes
        if in_another_way.fingerprint(own[0]) != first:
            of_shards()  # an error if it is the batch that varies
            raise in_another_way.other_gradient(own[0])
        if evaluated is not None and in_another_way.evaluated() != evaluated:
            of_batches()
            raise in_another_way.other_evaluation()
    if workload.optimizer_calls.has_rate:
        verify("rate(0)", range(1), lambda step: workload.optimizer_calls.rate(step).hex())
    if _compiled() != compiled and not compiles:
        raise PipelineRaised(
            "a part of the pipeline was compiled while a batch was computed",
            "set run.compile=true, which is part of what determines the result, or leave torch.compile out",
            code="pipeline.compiled",
        )
    return first or ""


def try_single_row(workload: PipelineAdapter, replica: Replica, steps: int) -> None:
    """Compute the micro-batch of a run of `steps` that the end of an epoch leaves a single row, where batch normalisation may
    not take it: else that is known when the first epoch is trained. Not for a loss that does otherwise in a later step. Raises
    PipelineRaised."""
    if workload.takes_step or not construction.normalised_by_batch(workload.model):
        return
    found = workload.samples.single_row(steps)
    if found is None:
        return
    replica.begin_shard()
    try:
        with whole_gradients(parameters_of(replica), _free):
            workload.loss(*found)
    except OrchestratorError as error:
        if error.recurs or isinstance(error.__context__, torch.AcceleratorError):
            raise  # any other is told by the step
    replica.forget()
    replica.begin_shard()


def operators(workload: PipelineAdapter, replica: Replica) -> set[str]:
    """The operators of torch that the first micro-batch and the first validation batch use; none of a batch that fails, as its
    step will."""
    with used.recorded() as found:
        for shard in workload.samples.attendance.own[:1]:
            fingerprint(workload, replica, shard)
        if workload.evaluation_batches:
            with contextlib.suppress(OrchestratorError):
                _evaluated(workload, replica, 0)
    return found


def flops_per_sample(workload: PipelineAdapter, replica: Replica) -> float | None:
    """The operations of the first micro-batch, forward and backward, per sample. None if it is empty, fails or may not be
    computed before its step."""
    from orchestrator.numerics import flop_counting  # it imports Triton, and a driver that plans stages counts nothing

    batches, own = workload.batches, workload.samples.attendance.own[:1]
    shards = [shard for shard in own if not batches.is_live and batches.rows(0, shard)]
    found = [flop_counting.counted(lambda: _contributed(replica, lambda: workload.loss(0, shard))) for shard in shards]  # noqa: B023
    replica.begin_shard()
    return next(
        (count / workload.batches.rows(0, shard) for count, shard in zip(found, shards, strict=True) if count), None
    )


def _verify(
    workload: PipelineAdapter,
    what: str,
    batches: Sequence[int],
    compute: Callable[[int], str | None],
    *,
    fills: bool,
    behind: Callable[[int], str | None] | None = None,
    differs: Callable[[], Difference | None] = lambda: None,
    repeats: bool = True,
) -> str | None:
    """The result of `compute` for the first of these batches, which has to be the same each time; None if it returns None for
    one of them. behind: does the same for the others, which are compared with nothing; fills: whether memory that nobody has
    written is filled the first time; code that is compiled meanwhile would go on filling it; differs: looks for what differs
    first; repeats: whether the first is computed again, also where no object has changed. Raises Inconsistent; PipelineRaised
    for settings of torch that have changed."""
    if not batches:
        return None
    settings, modes = determinism.settings_of_torch(), _modes(workload.model)
    untouched: state_detection.Observations = {}
    with contextlib.suppress(OrchestratorError):  # parts of the model may be in another stage already
        untouched = _look(workload) if repeats else {}
    with determinism.filled() if fills else contextlib.nullcontext(), _scaled() as scaled:
        results = [compute(batches[0])]
    _refuse_changed(settings, what)
    if scaled:
        raise PipelineRaised(
            f"a GradScaler of torch scaled a tensor while {what} was computed, and nobody divides gradients by its factor",
            "return the loss as it is: run.precision=bfloat16, or torch.autocast with bfloat16, needs no scaling",
            code="pipeline.grad-scaler",
        )
    left = [name for name, mode in _modes(workload.model).items() if modes.get(name, mode) != mode]
    before = _look(workload)
    results += [(behind or compute)(batch) for batch in batches[1:]]
    after = None if repeats else _look(workload)
    if after is None or after != before:
        results.append(compute(batches[0]))
        after = _look(workload)
    grown: dict[str, bool] = {}
    if after != before:
        compute(batches[0])
        grown = state_detection.grown(before, after, _look(workload))
    found = ", ".join(sorted(grown, key=lambda place: not grown[place])[:3])
    if len(results) > len(batches) and results[-1] != results[0]:
        mode = f"the mode of {', '.join(left[:3])}, by train() or eval()" if left else ""
        difference = differs()
        # An attribute that the first batch has set may also be a cache, so an operation says more.
        changed = state_detection.other(untouched, before) if untouched and difference is None else []
        raise _not_repeatable(what, found or mode or ", ".join(changed[:3]), difference)
    if any(grown.values()):
        weights = dict(state_detection.holders_and_weights(workload.user_objects(), workload.model).weights)
        raise Inconsistent(
            f"{found} changed each time that {what} was computed",
            state_detection.WITHIN_THE_MODEL
            if weights.keys() & grown.keys()
            else f"{_NO_STATE}; what nothing follows from may have a name that begins with _",
            code="pipeline.changes-itself",
        )
    for place in grown:
        if _follows_from(workload, place, results[0], lambda: compute(batches[0])):
            raise Inconsistent(
                f"{what} came out differently when {place} was another number, which changes each time",
                f"{_NO_STATE}; loss() with a parameter `step` is told how many updates the model has had",
                code="pipeline.private-counter",
            )
    return None if None in results else results[0]


def _modes(model: torch.nn.Module) -> dict[str, bool]:
    return {name: each.training for name, each in model.named_modules(prefix="model")}


def _follows_from(workload: PipelineAdapter, place: str, result: str | None, compute: Callable[[], str | None]) -> bool:
    """Whether the result is another one with another number at this place, or the next one is, of what the first has left. A
    failure tells nothing: a place in a list is no number of its own."""
    roots = workload.user_objects()
    found = {result, None}
    for away in state_detection.AWAY:
        with state_detection.another(roots, workload.model, place, away) as is_another:
            for _ in range(2 if is_another else 0):
                with contextlib.suppress(OrchestratorError):
                    found.add(compute())
    return found != {result, None}


def _not_repeatable(what: str, changed: str, difference: Difference | None) -> Inconsistent:
    """changed: the objects that have changed, in words; difference: which operation came out differently first."""
    if difference is not None and difference.its_own:
        return Inconsistent(
            f"{what} came out differently when it was computed again, of the same samples and random numbers"
            f"{difference.in_words()}",
            difference.remedy,
            code="pipeline.varying-operation",
        )
    why = f"; what had changed: {changed}" if changed else "" if difference is None else difference.in_words()
    return Inconsistent(
        f"{what} came out differently when it was computed again behind another one{why}",
        _NO_STATE,
        code="pipeline.not-repeatable",
    )


@contextlib.contextmanager
def _scaled() -> Iterator[list[torch.amp.GradScaler]]:
    """The scalers that are used within the block."""
    found: list[torch.amp.GradScaler] = []
    usual = torch.amp.GradScaler.scale

    def scale(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
        found.extend([scaler] * scaler.is_enabled())
        return usual(scaler, outputs)

    torch.amp.GradScaler.scale = scale  # type: ignore[method-assign, assignment]
    try:
        yield found
    finally:
        torch.amp.GradScaler.scale = usual  # type: ignore[method-assign]


def _refuse_changed(settings: Mapping[str, str], what: str) -> None:
    """With other settings the next batch may get other bits, and so may tensors that a worker makes itself."""
    now = determinism.settings_of_torch()
    changed = [f"{name} ({value}, then {now[name]})" for name, value in settings.items() if now[name] != value]
    if changed:
        raise PipelineRaised(
            f"settings of torch were changed while {what} was computed: {', '.join(changed)}",
            "leave them as they are: run.threads, run.tf32 and run.precision are for that, tensors take device= and dtype=, "
            "and what has no gradients is within `with torch.no_grad():`",
            code="pipeline.changes-torch",
        )


def _refuse_former_memory(replica: Replica, what: str, compute: Callable[[], object]) -> None:
    """Raises PipelineRaised where the batch is computed of a tensor that lies where a parameter lay before it was moved."""
    before = replica.former_memory()
    if not before:
        return
    with hold_memory() as held:
        compute()
    former = replica.former_memory()  # where memory is let go meanwhile, other tensors may get it
    for address in held.given(former.keys()):
        raise PipelineRaised(
            f"a tensor that model() has made of the parameter {former[address]!r}, such as a view of it, is used while "
            f"{what} is computed: the parameter is moved behind model(), and the tensor keeps its first values",
            "make it in forward(), of the parameter as it is then: self.weight.t(); where its first values are meant, make "
            "it of self.weight.detach().clone()",
            code="model.former-memory",
        )


def _look(workload: PipelineAdapter) -> state_detection.Observations:
    with naming("looking at what the pipeline, its model and its data sets keep"):  # it meets objects of any class
        gathers = isinstance(workload.pipeline, Adapted)  # as in training_step_outputs of a LightningModule
        return state_detection.look(workload.user_objects(), workload.model, gathers=gathers)


def note_on_untrained(workload: PipelineAdapter) -> str | None:
    """Behind the proof, in words: parameters outside of the model that the loss gives gradients, such as those of a criterion.
    None where there are none."""
    with naming("looking at what the pipeline and its model keep"):
        found = state_detection.untrained(workload.user_objects(), workload.model)
    if not found:
        return None
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return (
        f"the loss gives gradients to parameters that are not the model's ({found[0]}{others}), so nothing trains them; make "
        "them a part of what model() returns, layers of a list by nn.ModuleList, or freeze them by requires_grad_(False)"
    )


def note_on_modes(workload: PipelineAdapter) -> str | None:
    """Behind the proof, in words, where the loss of a validation batch is that of training mode."""
    if not workload.leaves_evaluation:
        return None
    return (
        "loss() calls train() in an evaluation, too, so validation/loss may be that of training mode: let it put back the "
        "mode that it found, by was = model.training and model.train(was)"
    )


def note_on_weight(workload: PipelineAdapter) -> str | None:
    """Behind the proof, in words, where loss() returns a pair whose second part may be a metric, such as an accuracy: as a
    weight it trains another model."""
    weight = workload.least_weight
    if weight >= 1:
        return None
    return (
        f"loss() returns a pair, and its second part, {weight:.4g}, is the weight of the micro-batch, in place of its rows; if "
        "it is a metric, such as an accuracy, return the loss alone, and the metric from metrics()"
    )


def fingerprint(
    workload: PipelineAdapter,
    replica: Replica,
    number: int,
    loss: Callable[[int], tuple[float, float] | None] | None = None,
) -> str | None:
    """A digest of all that micro-batch (step 0, number) would put into the sum, or that `loss(number)` would; None if it
    fails, as its step will. Raises PipelineRaised if it changes what has to stay, or if the GPU fails, which computes nothing
    afterwards."""
    digest = hashlib.sha256()
    tensors = _contributed(replica, lambda: workload.loss(0, number) if loss is None else loss(number))
    if tensors is None:
        return None
    for slot, tensor in zip(replica.layout.slots, tensors, strict=False):
        if tensor is not None:
            update(digest, slot.name, tensor)
    for name, buffer in replica.joined.items():
        update(digest, name, buffer)
    replica.begin_shard()
    return digest.hexdigest()


def _computed(workload: PipelineAdapter, replica: Replica, shard: int, *, spares: bool) -> str | None:
    """As `fingerprint`, or with `spares` as `fingerprint_sparing`, without a digest, which costs a third of the passes."""
    parameters = parameters_of(replica) if spares else {}
    with whole_gradients(parameters, _free):
        tensors = _contributed(replica, lambda: workload.loss(0, shard))
    replica.forget()
    replica.begin_shard()
    return None if tensors is None else ""


def _free(_: str, parameter: torch.Tensor) -> None:
    if parameter.grad is not None and parameter.grad.layout == torch.strided:
        parameter.grad = None


def fingerprint_sparing(
    workload: PipelineAdapter, replica: Replica, shard: int, loss: Loss | None = None, kept: Collection[str] = ()
) -> str | None:
    """Like `fingerprint`, with another value: a digest of the digests of all tensors. Each gradient is freed as soon as it is
    whole, since a worker that is to host a stage does not have the memory for all. loss: as `PipelineAdapter.loss`, which is
    the default; kept: the parameters whose gradients `loss` needs."""
    parameters = parameters_of(replica)
    compute = lambda: (loss or workload.loss)(0, shard)  # noqa: E731
    spared, tensors = _spared(replica, compute, {name: parameters[name] for name in parameters.keys() - set(kept)})
    if spared.twice:
        spared, tensors = _spared(replica, compute, {})
    if tensors is None:
        return None
    slots = replica.layout.slots
    digests = {slot.name: digest_of(each) for slot, each in zip(slots, tensors, strict=False) if each is not None}
    digests |= {name: digest_of(buffer) for name, buffer in replica.joined.items()}
    replica.forget()
    replica.begin_shard()
    return hashlib.sha256(repr(sorted((spared.digests | digests).items())).encode()).hexdigest()


def _spared(
    replica: Replica, compute: Callable[[], object], parameters: dict[str, torch.nn.Parameter]
) -> tuple[_FreedGradients, list[torch.Tensor | None] | None]:
    """The digests of these parameters' gradients, which are freed, and `_contributed` of the rest."""
    taken = _FreedGradients()
    with whole_gradients(parameters, taken.take):
        return taken, _contributed(replica, compute)


class _FreedGradients:
    """Digests of gradients that were freed. twice: one came in two parts, as from two activation checkpoints."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        self.twice = False

    def take(self, name: str, parameter: torch.Tensor) -> None:
        self.twice = self.twice or name in self.digests
        if parameter.grad is not None and parameter.grad.layout == torch.strided:
            self.digests[name] = digest_of(parameter.grad)
            parameter.grad = None


def _contributed(replica: Replica, compute: Callable[[], object]) -> list[torch.Tensor | None] | None:
    """The tensors that a micro-batch puts into the sum, none if it weighs nothing; None if it fails."""
    replica.begin_shard()
    try:
        tensors = replica.contribution() if compute() is not None else []
    except OrchestratorError as error:
        if isinstance(error.__context__, torch.AcceleratorError):
            raise
        replica.begin_shard()
        return None
    replica.check_shard()
    replica.check_step()
    return tensors


def _evaluated(workload: PipelineAdapter, replica: Replica, batch: int) -> str:
    """The numbers of a validation batch, bit for bit."""
    results = evaluation.compute(workload, replica, [batch], workload.evaluate, -1, lambda: None)
    if results.fault is not None:
        raise results.fault[1]
    return exact_numbers(results.names, results.rows[batch])


def exact_numbers(names: Sequence[str] | None, values: Sequence[float]) -> str:
    """The numbers of a validation batch, bit for bit."""
    return f"{names} {struct.pack(f'<{len(values)}d', *values).hex()}"


def _compiled() -> int:
    """How many pieces of code torch has compiled in this process. Does not import torch's compiler, which takes seconds."""
    compiler = sys.modules.get("torch._dynamo.utils")
    return 0 if compiler is None else compiler.counters["frames"]["total"]
