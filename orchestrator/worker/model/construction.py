"""Building and checking the pipeline, the model and the optimizer of a run, under its seed. Each worker does so; before
that the driver does it once (`rehearse`), so that what every worker would refuse is refused before anything is started
(law 7).

It reads no data and computes nothing.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from os import devnull
from typing import Any, TypeVar

import torch
from torch.nn.modules import batchnorm

from orchestrator.adapters import table
from orchestrator.adapters.adapted import Adapted, Course
from orchestrator.config.plan import Plan, Run, Variant
from orchestrator.errors import ConfigurationError, PipelineRaised, few
from orchestrator.numerics import float32_precision, inductor
from orchestrator.numerics.determinism import filled, left_as_it_was
from orchestrator.numerics.layout import Layout
from orchestrator.numerics.streams import seed_of, seeded
from orchestrator.optim import optimizer_laws, optimizers
from orchestrator.optim.compressions import COMPRESSIONS
from orchestrator.optim.compressions.codec import Codec, Means, Model
from orchestrator.optim.contributions import CONTRIBUTIONS
from orchestrator.optim.transforms import Chain
from orchestrator.pipeline import Pipeline, defines, hidden_method, naming
from orchestrator.worker.model import begin_state, initial, moving_buffers, refusals, watched_step

Built = TypeVar("Built")
_SOME_STEPS = 64  # of a course that is not known yet
_SHOWN = 3  # parameters in a sentence
_FEW_ROWS = 16  # with fewer the mean of a batch is a poor guess at the mean of the data


def make_pipeline(kind: type[Pipeline], args: Mapping[str, Any], seed: int) -> Pipeline:
    with naming("the pipeline's __init__"), seeded(seed, "pipeline"), filled():
        pipeline = kind(**args)
    if (name := hidden_method(pipeline)) is not None:
        given = type(vars(pipeline)[name]).__name__
        raise PipelineRaised(
            f"the pipeline's __init__ sets self.{name}, a {given}, in place of the method {name}()",
            "give the attribute another name; what is to be called is a method of the class",
            code="pipeline.hidden-method",
        )
    return pipeline


def make_model(pipeline: Pipeline, seed: int, woken: list[str] | None = None) -> torch.nn.Module:
    """The pipeline's model, in training mode; parts of it may be in evaluation mode where an adapter's framework keeps them.
    woken: gets the names of frozen parts that model() had set to evaluation mode, and that are in training mode now."""
    with naming("model()"), seeded(seed, "model"), filled():
        model: Any = pipeline.model()
    if not isinstance(model, torch.nn.Module):
        raise PipelineRaised(
            f"model() returned {type(model).__name__}", "return a torch.nn.Module", code="pipeline.model"
        )
    with naming("reading the model's layers"):
        refusals.refuse_clashes(model)
        refusals.refuse_exported(model)
    if not (isinstance(pipeline, Adapted) and pipeline.sets_modes):
        still = _frozen_and_still(model)
        with naming("train() of the model"):
            model.train()
        if woken is not None:
            woken += [name for name, each in still.items() if each.training]
    return model


def _frozen_and_still(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """By name, the outermost parts of a model in training mode that are in evaluation mode and wholly frozen. A model that is
    not in training mode, as `from_pretrained` returns it, has no part that was chosen."""
    found: dict[str, torch.nn.Module] = {}
    for name, each in model.named_modules() if model.training else ():
        if each.training or any(name.startswith(f"{outer}.") for outer in found):
            continue
        frozen = [not parameter.requires_grad for parameter in each.parameters()]
        if frozen and all(frozen):
            found[name] = each
    return found


def with_data(pipeline: Pipeline, seed: int, build: Callable[[], Built]) -> Built:
    """The result of `build`, which calls model(); one that needs what datasets() finds gets it. Raises what `build` raises."""
    try:
        return build()
    except PipelineRaised as without_data:
        try:
            with naming("datasets()"), seeded(seed, "datasets"):
                pipeline.datasets()
            return build()
        except PipelineRaised:
            raise without_data from None


def first_model(pipeline: Pipeline, run: Run) -> torch.nn.Module:
    """The pipeline's model with the values that training begins with. Raises what `make_model` raises, ConfigurationError."""
    model = make_model(pipeline, run.seed)
    if run.initial is not None:
        initial.begin_with(model, run.initial)
    return model


def make_optimizer(pipeline: Pipeline, model: torch.nn.Module, plan: Plan) -> torch.optim.Optimizer:
    """Raises PipelineRaised, ConfigurationError."""
    optimizers.prepare()
    if not defines(type(pipeline), "optimizer"):
        variant = plan.update.optimizer
        if variant is None:
            raise ConfigurationError(
                ["optimizer: required, because the pipeline has no optimizer()"], code="optimizer.required"
            )
        return optimizers.build(variant.name, variant.options, model)
    schedulers = nullcontext() if isinstance(pipeline, Adapted) else optimizer_laws.without_schedulers()
    with naming("optimizer()"), seeded(plan.run.seed, "optimizer"), schedulers, filled():
        optimizer = pipeline.optimizer(model)
    with naming("reading the param_groups of the optimizer"):
        optimizers.with_plain_numbers(optimizer)
        optimizer_laws.check(optimizer, model)
    assert optimizer is not None
    return optimizers.fused(optimizer)


def make_contribution(variant: Variant | None) -> Chain:
    """The transforms of a shard's gradient before the sum. Raises PipelineRaised, ConfigurationError."""
    if variant is None:
        return Chain()
    with naming(f"building {variant.name}"):
        transform = CONTRIBUTIONS.build(variant.name, variant.options)()
    return Chain() if transform is None else Chain(transform)


def make_codec(plan: Plan, layout: Layout, parameters: int) -> Codec | None:
    """The compression of the first tensors of this layout. Raises PipelineRaised, ConfigurationError."""
    variant = plan.update.compression
    if variant is None:
        return None
    shapes = tuple(slot.shape_in_memory for slot in layout.slots[:parameters])
    model = Model(shapes, plan.data.shards, seed_of(plan.run.seed, "compression"))
    with naming(f"building {variant.name}"):
        return COMPRESSIONS.build(variant.name, variant.options)(model)


@dataclass(frozen=True)
class Rehearsal:
    """The result of a rehearsal: what is known of a run once it was built here. notes: for a person, a sentence each;
    parameters: elements of the model; layout: of what is exchanged, as plain data. None where the model could not be built
    here. plateau: the options of the schedule that the code has, and the settings do not have yet; None where they are whole.
    trained: how many tensors of the layout are parameters."""

    notes: list[str]
    parameters: int | None
    layout: dict[str, Any] | None = None
    plateau: Mapping[str, Any] | None = None
    trained: int = 0


def rehearse(plan: Plan) -> Rehearsal:
    """Build all three, check them as a worker does, and release them.

    The data sets are not made, which may take long. Exceptions of the pipeline itself are left to the workers, since they may
    depend on what `datasets` finds. Raises ConfigurationError; leaves the process as it was.
    """
    try:
        with left_as_it_was(), warnings.catch_warnings(), open(devnull, "w") as nowhere, redirect_stdout(nowhere):
            warnings.simplefilter("ignore")  # a worker says all this too
            model, found = _rehearse(plan)
        if model() is not None:  # it refers to itself
            gc.collect()
        return found
    except PipelineRaised as error:
        if error.details:  # a traceback: raised by the pipeline
            return Rehearsal([], None)
        raise ConfigurationError([f"pipeline.target: {error.message}"], error.remedy, code=error.code) from None


def _rehearse(plan: Plan) -> tuple[weakref.ref[torch.nn.Module], Rehearsal]:
    kind = table.find(plan.run.pipeline)
    pipeline = make_pipeline(kind, plan.run.pipeline.args, plan.run.seed)
    adapted = pipeline if isinstance(pipeline, Adapted) else None
    if adapted is not None:
        adapted.begin(course_of(plan, None))
    woken: list[str] = []
    model = make_model(pipeline, plan.run.seed, woken)
    refusals.refuse_unsupported(model)
    refusals.refuse_compiled(model, plan)
    if plan.run.initial is not None and plan.run.initial.digest is not None:  # one that a launch has fetched
        initial.begin_with(model, plan.run.initial)
    rules = moving_buffers.declared(pipeline, model)
    refusals.refuse_moving(model, rules, plan)
    _refuse_idle_compression(model, plan)
    make_contribution(plan.update.contribution)
    left_out: list[str] = []
    if plan.run.begin is not None:
        begin_state.refuse_unfit(model, make_optimizer(pipeline, model, plan), plan.run.begin, plan.update.optimizer)
    elif defines(kind, "optimizer"):  # of others the options are checked
        optimizer = make_optimizer(pipeline, model, plan)
        left_out = [*_notes_on_left_out(model, optimizer), *_notes_on_unread(optimizer)]
        watched_step.refuse_unfit(optimizer, model, plan.run.seed)
    layout = layout_of(model, moving_buffers.Moving.of(model, rules)).as_dict()
    parameters = sum(each.numel() for each in model.parameters())
    trained = sum(each.requires_grad for each in model.parameters())
    of_adapter = [] if adapted is None else adapted.notes()
    notes = [
        *_notes(model, plan),
        *_notes_on_buffers(model, rules),
        *_notes_on_woken(woken),
        *_notes_on_uncalled(model),
        *left_out,
        *of_adapter,
    ]
    plateau = None if adapted is None else adapted.plateau
    return weakref.ref(model), Rehearsal(notes, parameters, layout, plateau, trained)


def course_of(plan: Plan, samples: Any) -> Course:
    """The course of a run. samples: of its training; None before these are known, where it is some course."""
    run, data = plan.run, plan.data
    order = None if samples is None else samples.order
    epoch = _SOME_STEPS if order is None else order.steps_per_epoch
    steps = run.length((lambda epochs: epochs * epoch) if order is None else order.steps_of)
    return Course(
        min(steps, _SOME_STEPS) if order is None else steps,
        epoch,
        data.batch_size.at(0),
        plan.update.schedule.name,
        data.order.name,
        "uniform" if data.sampling is None else data.sampling.name,
        plan.cadence.evaluation is not None and plan.cadence.evaluation.seconds is None,
        1 if samples is None else samples.steps_per_round,
    )


def layout_of(model: torch.nn.Module, moving: moving_buffers.Moving) -> Layout:
    """The layout of what is exchanged of a model: its trained parameters, then the buffers of which all take the mean."""
    trained = ((name, each) for name, each in model.named_parameters() if each.requires_grad)
    return Layout.of([*trained, *moving.means.items()])


def _notes(model: torch.nn.Module, plan: Plan) -> list[str]:
    return [*_notes_on_precision(plan), *_notes_on_rows(model, plan), *_notes_on_compiling(model, plan)]


def _notes_on_precision(plan: Plan) -> list[str]:
    """Scripts lower it as they begin, and workers put it back."""
    lowered = float32_precision.lowered()
    if not lowered or plan.run.compute.tf32:
        return []
    return [
        f"products of float32 are computed as such: {lowered[0]}.fp32_precision, which the pipeline has set by that or an "
        "older switch of torch, has no effect; run.tf32=true allows TF32 on a GPU, run.precision=bfloat16 computes in bfloat16"
    ]


def _notes_on_compiling(model: torch.nn.Module, plan: Plan) -> list[str]:
    if not plan.run.compute.compiled:
        return []
    notes = [inductor.NOTE] if plan.run.compute.device == "cpu" else []
    if (name := refusals.compiled_module(model)) is not None:
        notes.append(
            f"run.compile: the pipeline has compiled {name!r} itself, which is taken as it is; what it chooses by a "
            "measurement or by the shapes it has seen may give other bits on another worker; first gradients alone are compared"
        )
    return notes


def normalised_by_batch(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers whose results depend on the other rows of a micro-batch."""
    return [each for each in model.modules() if isinstance(each, batchnorm._BatchNorm) and each.training]


def _notes_on_rows(model: torch.nn.Module, plan: Plan) -> list[str]:
    rows = plan.data.batch_size.least / plan.data.shards
    layers = normalised_by_batch(model)
    notes = []
    if layers and rows < _FEW_ROWS:
        notes.append(
            f"batch normalisation sees data.batch_size / data.shards = {rows:g} rows at a time, and fewer than {_FEW_ROWS} "
            "make its means noisy: lower data.shards, raise data.batch_size, or normalise by group or layer"
        )
    if any(isinstance(each, torch.nn.SyncBatchNorm) for each in layers):
        notes.append(
            f"SyncBatchNorm normalises each shard's {rows:g} rows by themselves, as BatchNorm does: all rows of a step are not "
            "seen together by any layer"
        )
    return notes


def _notes_on_woken(names: list[str]) -> list[str]:
    """A teacher whose dropout is at work teaches something else, and nothing fails."""
    if not names:
        return []
    return [
        f"model() freezes {few(names, _SHOWN)} in evaluation mode, and a run begins with train() of the whole model: to stay "
        "in it, its class has def train(self, mode=True): return super().train(False), or loss() calls its eval()"
    ]


def _notes_on_uncalled(model: torch.nn.Module) -> list[str]:
    """A loop that trains AdaLoRA of peft calls it after each step."""
    if not any(hasattr(type(each), "update_and_allocate") for each in model.modules()):
        return []
    return [
        "the model has an update_and_allocate(), which nobody calls: all ranks of AdaLoRA stay as they begin; what it chooses "
        "them by is in no checkpoint, so that no step() may call it; LoRA and DoRA need none"
    ]


def _notes_on_left_out(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """A new layer that was forgotten as the groups were made is never trained, and nothing fails."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    names = [name for name, each in trained.items() if id(each) not in held]
    if not names:
        return []
    return [
        f"optimizer() has {len(trained) - len(names)} of {len(trained)} trainable parameters; the others stay as they are: "
        f"{few(names, _SHOWN)}; freeze what is meant to by requires_grad_(False), in model()"
    ]


def _notes_on_unread(optimizer: torch.optim.Optimizer) -> list[str]:
    """A factor of a group, for a loop that multiplies rates by it, does nothing where that loop is left out, nor does an option
    whose name is misspelled, and nothing fails."""
    unread = optimizer_laws.unread_options(optimizer)
    if not unread:
        return []
    kind = type(optimizer).__name__
    return [
        f"the optimizer's groups have {few(unread, _SHOWN)}, which {kind} does not read: where a loop multiplied rates by it, "
        f"multiply lr of the group as it is built; what a loop did with it in each step is for step() of a subclass of {kind}"
    ]


def _notes_on_buffers(model: torch.nn.Module, rules: Mapping[str, str]) -> list[str]:
    """On those that move and are in no state_dict. Checkpoints hold them, and whoever loads the trained model has none."""
    with naming("state_dict() of the model"):
        kept = model.state_dict().keys()
    lost = [name for name in rules if name not in kept]
    if not lost:
        return []
    others = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    return [
        f"buffers() has a rule for {lost[0]!r}{others}, which no state_dict() holds: if it moves, the model that is saved or "
        "served has its first value; register it without persistent=False"
    ]


def _refuse_idle_compression(model: torch.nn.Module, plan: Plan) -> None:
    """Raises ConfigurationError where all that a compression does to this model is to sum it exactly."""
    variant = plan.update.compression
    if variant is None:
        return
    trained = [(name, each.detach()) for name, each in model.named_parameters() if each.requires_grad]
    codec = make_codec(plan, Layout.of(trained), len(trained))
    if codec is None or len(codec.phases) > 1 or not isinstance(codec.phases[0], Means):
        return
    if sum(codec.phases[0].elements) < sum(each.numel() for _, each in trained):
        return
    options = COMPRESSIONS.resolve(variant.name, variant.options).items()
    given = ", ".join(f"{name}={value}" for name, value in options if not isinstance(value, bool))
    raise ConfigurationError(
        [f"compression: {variant.name} with {given} makes no tensor of this model smaller"],
        "give it other options, such as a lower compression.rank, or leave compression out",
        code="compression.idle",
    )
