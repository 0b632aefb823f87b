"""The laws of an optimizer: which options the `optimizer` section may give, and which optimizer a pipeline may return. All are
checked before a run starts."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from orchestrator.common.import_string import raised
from orchestrator.common.registry import is_reference, takes
from orchestrator.errors import PipelineRaised, coded
from orchestrator.optim.by_element import is_watched
from orchestrator.optim.optimizer_state import comes_with_torch, kept_aside, said
from orchestrator.optim.optimizers import OPTIMIZERS, arguments, build, prepare

_CLOSURE = "it calls the model again within its step, but workers add up one gradient for a step"
_UNFIT: dict[type[torch.optim.Optimizer], tuple[str, str]] = {
    torch.optim.LBFGS: (_CLOSURE, "nothing does the same; train with another one, such as adamw, or outside"),
    torch.optim.SparseAdam: ("it wants sparse gradients", "give embeddings sparse=False and take adam"),
}
_WITH_CLOSURE = (
    _CLOSURE,
    "have loss() compute what its second pass does, as SAM can be written (docs/porting.md), or train with another one",
)
_SCHEDULERS = (LRScheduler, ReduceLROnPlateau)  # the second does not call the __init__ of the first, its base
_SCALE = "lr_scale"  # of a group, for a scheduler: of timm, and of training scripts such as those of BEiT and MAE
# Schedulers of torch leave these in groups, and those that Lightning returns are tabulated.
_LEFT_BY_SCHEDULERS = ("initial_lr", "max_lr", "min_lr", "swa_lr")
_OWN_SCHEDULE = "set `schedule` in the configuration, or write the factor as rate(self, step) in the pipeline"


def problems(name: str, options: Mapping[str, Any]) -> list[str]:
    """The faults of the `optimizer` section, a sentence each. torch's own checks count: they come before the one that misses
    the parameters, and nothing expensive is imported up to there."""
    prepare()
    for kind, (why, remedy) in _UNFIT.items():
        if kind.__name__.lower() == name:
            return [
                coded(
                    "optimizer.not-on-offer",
                    f"optimizer.name: {name!r} is not on offer: {why}; {remedy} (there are {', '.join(OPTIMIZERS)})",
                )
            ]
    if found := OPTIMIZERS.problems(name, options):
        return found
    if is_reference(name):
        problem = broken(lambda model: build(name, options, model))
        return [] if problem is None else [coded("optimizer.own-unfit", f"optimizer: {name} {problem}")]
    texts = [key for key, value in options.items() if isinstance(value, str)]
    if texts:
        return [
            coded(
                "optimizer.option-is-text",
                f"optimizer.{key}: {_no_text(OPTIMIZERS.options(name)[key].default, options[key])}",
            )
            for key in texts
        ]
    if nans := [key for key, value in options.items() if isinstance(value, float) and math.isnan(value)]:
        return [
            coded("optimizer.option-nan", f"optimizer.{key}: expected a number, got {options[key]}") for key in nans
        ]
    if options.get("nesterov") and options.get("foreach"):
        return [
            coded(
                "optimizer.foreach-nesterov",
                "optimizer.foreach: with nesterov it overwrites gradients that other workers still read; leave foreach out",
            )
        ]
    if options.get("fused") and options.get("foreach"):
        return [coded("optimizer.fused-foreach", f"optimizer: {name} is either fused or foreach, not both")]
    try:
        OPTIMIZERS[name]([], **arguments(options))
    except (TypeError, ValueError, RuntimeError) as error:
        if "empty parameter list" in str(error):
            return []
        return [coded("optimizer.refuses-options", f"optimizer: {name} refuses {dict(options)}: {error}")]
    raise AssertionError(f"{name} took an empty list of parameters")


def _no_text(default: Any, given: str) -> str:
    """Advice what to give in place of text. default: of the option, which tells its kind; few of torch's have annotations."""
    kinds = {float: "a number", int: "a number", bool: "true or false", types.NoneType: "true, false or null"}
    expected = kinds.get(type(default), "numbers, such as [0.9, 0.999]")
    quoted = given in ("true", "false", "null") or _is_number(given)
    return f"expected {expected}, got the text {given!r}" + "; leave the quotation marks out" * quoted


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def broken(make: Callable[[torch.nn.Module], torch.optim.Optimizer]) -> str | None:
    """The law that an optimizer breaks, as a predicate; None where it keeps to all: it has torch's form, steps without a
    closure, and remembers nothing where no checkpoint finds it."""
    try:
        return _try_out(make)
    except PipelineRaised as error:
        return f"is not fit: {error.message.removeprefix('optimizer() ')} ({error.remedy})"
    except Exception as error:
        return raised(error)


def _try_out(make: Callable[[torch.nn.Module], torch.optim.Optimizer]) -> str | None:
    """A few steps with a small model, in a random stream of their own."""
    with torch.random.fork_rng(devices=[]):
        model = torch.nn.Linear(2, 2)
        return _stepping(make(model), model)


def _stepping(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> str | None:
    check(optimizer, model)
    for step in range(3):
        kept = kept_aside(optimizer, model)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.25 * (step - 1))
        optimizer.step()
        if changed := sorted(key for key, value in kept_aside(optimizer, model).items() if kept.get(key) != value):
            return (
                f"remembers something in its {changed[0]}, where no checkpoint finds it: keep it in state or "
                "param_groups"
            )
    return None


def check(optimizer: object, model: torch.nn.Module) -> None:
    """Raises PipelineRaised for what a pipeline's own `optimizer(model)` may not return."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise PipelineRaised(
            f"optimizer() returned a {type(optimizer).__name__}",
            "return one torch.optim.Optimizer; networks that are trained at once or in turn are parameter groups of one, and "
            "optimizers of several classes step within one (docs/porting.md shows all)",
            code="optimizer.type",
        )
    if isinstance(optimizer, tuple(_UNFIT)) or not takes(optimizer.step):
        raise unfit(optimizer)
    # An attribute None says that a class takes care of it.
    if callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None)):
        within = getattr(optimizer, "optimizer", None)
        if isinstance(within, torch.optim.Optimizer):
            inner = type(within).__name__
            raise PipelineRaised(
                f"optimizer() returned a {type(optimizer).__name__} around a {inner}, as accelerate prepares it for a loop",
                f"return the {inner}, and leave prepare() out: devices, accumulation and precision are settings of a run",
                code="optimizer.prepared",
            )
        raise PipelineRaised(
            f"optimizer() returned a {type(optimizer).__name__}, whose train() and eval() exchange the weights: nobody would "
            "call eval() before an evaluation, and other weights than the averaged ones would be evaluated and exported",
            "have step() of a subclass write the averaged weights into frozen parameters of the model, and set its train and "
            "eval to None (docs/porting.md, optimizers without a schedule)",
            code="optimizer.two-modes",
        )
    if any("initial_lr" in group for group in optimizer.param_groups):
        raise PipelineRaised(
            "a scheduler has been built over the optimizer that optimizer() returned: its param_groups have 'initial_lr'",
            f"nobody would step it, and its first rate would stay: return the optimizer alone; {_OWN_SCHEDULE}",
            code="optimizer.scheduler-over",
        )
    known = {id(parameter) for parameter in model.parameters()}
    strangers = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in known]
    if strangers:
        raise PipelineRaised(
            f"optimizer() updates a tensor of shape {tuple(strangers[0].shape)} that is no parameter of the model",
            "make it a parameter of what model() returns: only those are summed over the shards",
            code="optimizer.foreign-parameter",
        )
    strange = [key for key in optimizer.state if id(key) not in known]
    if strange:
        raise PipelineRaised(
            f"optimizer() keeps state for {said(strange[0])}, which is no parameter of the model",
            "a checkpoint holds what is in optimizer.state[parameter] and in param_groups: keep it there",
            code="optimizer.foreign-state",
        )
    if any(not _is_rate(group.get("lr")) for group in optimizer.param_groups):
        raise PipelineRaised(
            f"optimizer() returned a {type(optimizer).__name__} without a learning rate",
            "give each of its param_groups a number as lr: `schedule` multiplies it",
            code="optimizer.no-rate",
        )
    scaled = next((group for group in optimizer.param_groups if group.get(_SCALE, 1) != 1), None)
    if scaled is not None:
        raise PipelineRaised(
            f"optimizer() returned a group with {_SCALE}={scaled[_SCALE]}, as the layer_decay of timm sets it: a scheduler of "
            "timm would multiply rates by it, and nobody does here",
            f'do so in optimizer(): for group in optimizer.param_groups: group["lr"] *= group.pop("{_SCALE}", 1)',
            code="optimizer.scale-unused",
        )


def unread_options(optimizer: torch.optim.Optimizer) -> list[str]:
    """The names of numbers in its groups that no class of torch reads; of another class it is not known."""
    kind = type(optimizer)
    if is_watched(optimizer) or not (comes_with_torch(kind) or kind in OPTIMIZERS.values()):
        return []
    read = {"lr", _SCALE, *_LEFT_BY_SCHEDULERS, *optimizer.defaults}
    numbers = [key for group in optimizer.param_groups for key in group if isinstance(group[key], (bool, int, float))]
    return [key for key in dict.fromkeys(numbers) if key not in read]


def unfit(optimizer: torch.optim.Optimizer) -> PipelineRaised:
    """The error for one of a kind that cannot train here; of a kind that is not known, one that wants a closure."""
    why, remedy = next((told for kind, told in _UNFIT.items() if isinstance(optimizer, kind)), _WITH_CLOSURE)
    return PipelineRaised(f"optimizer() returned a {type(optimizer).__name__}: {why}", remedy, code="optimizer.unfit")


def _is_rate(value: Any) -> bool:
    return value.numel() == 1 if isinstance(value, torch.Tensor) else isinstance(value, (int, float))


@contextmanager
def without_schedulers() -> Iterator[None]:
    """Inside the block none of torch can be built. Afterwards it is too late to name one: it may be gone, with the learning
    rates that it has set left behind, or, for a plateau, nothing at all."""
    usual = [(kind, kind.__init__) for kind in _SCHEDULERS]

    def refuse(scheduler: object, *_: Any, **__: Any) -> None:
        raise PipelineRaised(
            f"optimizer() builds a scheduler, {type(scheduler).__name__}, which nobody would step",
            f"return the optimizer alone; {_OWN_SCHEDULE}",
            code="optimizer.scheduler-within",
        )

    try:
        for kind in _SCHEDULERS:
            kind.__init__ = refuse  # type: ignore[assignment, method-assign]
        yield
    finally:
        for kind, initialize in usual:
            kind.__init__ = initialize  # type: ignore[method-assign]
