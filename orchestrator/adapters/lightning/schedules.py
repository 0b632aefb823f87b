"""The schedulers that configure_optimizers returns, tabulated once over the run: the factor on the learning rates at each step.

They are stepped as Lightning does, on an optimizer that has not taken a step. If all groups have one rate, the optimizer gets
a power of two in its place, so that the factors times it are the scheduler's own rates to the last bit. Otherwise a rate may
differ in its last bit.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from orchestrator.adapters.adapted import Course
from orchestrator.errors import PipelineRaised

_LEFT_BEHIND = ("step", "_opt_called", "_wrapped_by_lr_sched")  # attributes that a scheduler gives an optimizer


class _Scheduler(NamedTuple):
    scheduler: Any
    interval: str = "epoch"  # or "step"
    frequency: int = 1


def optimizer_of(returned: Any) -> tuple[Any, list[_Scheduler]]:
    """The optimizer and the schedulers in what configure_optimizers returned. Raises PipelineRaised."""
    optimizers, schedulers = _parts(returned)
    if len(optimizers) != 1:
        raise PipelineRaised(
            f"configure_optimizers returned {len(optimizers)} optimizers",
            "return one; networks that are trained in turn are parameter groups of one (docs/porting.md)",
            code="lightning.optimizers-returned",
        )
    return optimizers[0], [_described(each) for each in schedulers]


def _parts(returned: Any) -> tuple[list[Any], list[Any]]:
    if returned is None:
        return [], []
    if isinstance(returned, Mapping):
        scheduler = returned.get("lr_scheduler")
        return [returned["optimizer"]], [] if scheduler is None else [scheduler]
    if isinstance(returned, Sequence):
        if len(returned) == 2 and isinstance(returned[0], Sequence):
            scheduled = returned[1]
            return list(returned[0]), list(scheduled) if isinstance(scheduled, Sequence) else [scheduled]
        if all(isinstance(each, Mapping) for each in returned):
            parts = [_parts(each) for each in returned]
            return [each for part in parts for each in part[0]], [each for part in parts for each in part[1]]
        return list(returned), []
    return [returned], []


def _described(given: Any) -> _Scheduler:
    if isinstance(given, Mapping):
        return _Scheduler(given["scheduler"], given.get("interval", "epoch"), int(given.get("frequency", 1)))
    return _Scheduler(given)


def factors(optimizer: torch.optim.Optimizer, schedulers: Sequence[_Scheduler], course: Course) -> list[float] | None:
    """For each step of the run; None where no scheduler says. The optimizer has afterwards the rates that the factors multiply.
    Raises PipelineRaised."""
    tabulated = [each for each in schedulers if not _plateau(each.scheduler, course)]
    if not tabulated:
        _restore(optimizer, [_rate(group) for group in optimizer.param_groups])
        return None
    for each in tabulated:
        _check(each)
    bases = [float(group.get("initial_lr", _rate(group))) for group in optimizer.param_groups]
    rates: list[list[float]] = []
    others = _other_options(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no step of the optimizer came before
        for step in range(course.steps):
            rates.append([_rate(group) for group in optimizer.param_groups])
            for each in _due(tabulated, step, course.epoch):
                each.scheduler.step()
    if (changed := _other_options(optimizer)) != others:
        name = next(key for old, new in zip(others, changed, strict=True) for key in old if old[key] != new[key])
        raise PipelineRaised(
            f"the scheduler {_name(tabulated[0])} changes {name!r} too",
            "here a schedule changes learning rates alone: give it cycle_momentum=False",
            code="lightning.scheduler-options",
        )
    if len(set(bases)) == 1 and bases[0] > 0:  # products with a power of two are exact
        bases = [2.0 ** math.floor(math.log2(bases[0]))] * len(bases)
    _restore(optimizer, bases)
    return [_factor(at, bases, tabulated) for at in rates]


def _due(schedulers: Sequence[_Scheduler], step: int, epoch: int) -> Iterator[_Scheduler]:
    """Those that are stepped after this step: first by steps of the epoch, then at its end."""
    number, place = divmod(step, epoch)
    for each in schedulers:
        if each.interval == "step" and (place + 1) % each.frequency == 0:
            yield each
    for each in schedulers:
        if each.interval == "epoch" and place + 1 == epoch and (number + 1) % each.frequency == 0:
            yield each


def _check(each: _Scheduler) -> None:
    if not isinstance(each.scheduler, LRScheduler):
        raise PipelineRaised(
            f"configure_optimizers returned the scheduler {_name(each)}, which is none of torch.optim.lr_scheduler",
            "return one of these, such as LambdaLR with a function of the step, or set `schedule` in the configuration",
            code="lightning.scheduler",
        )
    if each.interval not in ("step", "epoch"):
        raise PipelineRaised(
            f"the scheduler {_name(each)} has interval={each.interval!r}",
            "there are step and epoch",
            code="lightning.scheduler-interval",
        )


def _plateau(scheduler: Any, course: Course) -> bool:
    """Whether it watches a metric, and the settings do so in its place."""
    if not isinstance(scheduler, ReduceLROnPlateau):
        return False
    if course.schedule != "plateau":
        raise PipelineRaised(
            "configure_optimizers returned ReduceLROnPlateau, which the settings stand for",
            f"set schedule: {{name: plateau, gamma: {scheduler.factor:g}, patience: {scheduler.patience + 1}, metric: "
            f"validation/NAME, mode: {scheduler.mode}}}, and evaluation.every in steps",
            code="lightning.plateau",
        )
    return True


def _factor(rates: Sequence[float], bases: Sequence[float], schedulers: Sequence[_Scheduler]) -> float:
    """One for all groups."""
    candidates = [_nearest(rate, base) for rate, base in zip(rates, bases, strict=True) if base]
    if not candidates:
        return 1.0
    first = candidates[0]
    if any(not math.isclose(each, first, rel_tol=1e-9, abs_tol=1e-15) for each in candidates):
        raise PipelineRaised(
            f"the scheduler {_name(schedulers[0])} gives the parameter groups other factors",
            "here all groups have one schedule, each with its own lr: give LambdaLR one function",
            code="lightning.scheduler-groups",
        )
    return first


def _nearest(rate: float, base: float) -> float:
    """The factor with which base * factor is the rate, if a float near their quotient is."""
    quotient = rate / base
    near = (quotient, math.nextafter(quotient, math.inf), math.nextafter(quotient, 0.0))
    return next((each for each in near if base * each == rate), quotient)


def _restore(optimizer: torch.optim.Optimizer, rates: Sequence[float]) -> None:
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
        group.pop("initial_lr", None)
    for name in _LEFT_BEHIND:
        vars(optimizer).pop(name, None)


def _rate(group: Mapping[str, Any]) -> float:
    return float(group["lr"])


def _other_options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    mine = ("params", "lr", "initial_lr")
    return [{key: value for key, value in group.items() if key not in mine} for group in optimizer.param_groups]


def _name(each: _Scheduler) -> str:
    return type(each.scheduler).__name__
