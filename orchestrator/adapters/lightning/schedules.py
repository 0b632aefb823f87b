"""The schedulers that configure_optimizers returns, tabulated once over the run: the factor on the learning rates at each step.

They are stepped as Lightning does, on an optimizer that has not taken a step. If all groups have one rate, the optimizer gets
a power of two in its place, so that the factors times it are the scheduler's own rates to the last bit. Otherwise a rate may
differ in its last bit.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from orchestrator.adapters.adapted import Course
from orchestrator.adapters.lightning import plateaus
from orchestrator.errors import ConfigurationError, coded

_LEFT_BEHIND = ("step", "_opt_called", "_wrapped_by_lr_sched")  # attributes that a scheduler gives an optimizer


class _Scheduler(NamedTuple):
    scheduler: Any
    interval: str = "epoch"  # or "step"
    frequency: int = 1
    monitor: str | None = None  # the metric that it watches
    by_metric: bool = False  # whether it is stepped with that, of whatever class it is

    @property
    def name(self) -> str:
        return type(self.scheduler).__name__

    @property
    def watches(self) -> bool:
        return isinstance(self.scheduler, ReduceLROnPlateau)


def optimizer_of(returned: Any, course: Course) -> tuple[Any, list[_Scheduler]]:
    """The optimizer and the schedulers in what configure_optimizers returned. Raises ConfigurationError for several, with what
    is wrong with their schedulers."""
    optimizers, schedulers = _parts(returned)
    found = [_described(each) for each in schedulers]
    if len(optimizers) == 1:
        return optimizers[0], found
    number = coded(
        "lightning.optimizers-returned",
        f"pipeline.target: configure_optimizers returned {len(optimizers)} optimizers; return one, in which they step at once "
        "or in turn (docs/porting.md)",
    )
    raise ConfigurationError([number, *problems(found, course)])


def _parts(returned: Any) -> tuple[list[Any], list[Any]]:
    if returned is None:
        return [], []
    if isinstance(returned, Mapping):
        scheduler = returned.get("lr_scheduler")
        if scheduler is not None and "monitor" in returned and not isinstance(scheduler, Mapping):
            scheduler = {"scheduler": scheduler, "monitor": returned["monitor"]}
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
        interval, frequency = given.get("interval", "epoch"), int(given.get("frequency", 1))
        by_metric = bool(given.get("reduce_on_plateau"))
        return _Scheduler(given["scheduler"], interval, frequency, given.get("monitor"), by_metric)
    return _Scheduler(given)


def problems(schedulers: Sequence[_Scheduler], course: Course) -> Iterator[str]:
    """The schedulers that are none here, and those that do not go with each other or with the settings, a sentence each."""
    for each in schedulers:
        if not isinstance(each.scheduler, (LRScheduler, ReduceLROnPlateau)):
            yield coded(
                "lightning.scheduler",
                f"pipeline.target: configure_optimizers returned the scheduler {each.name}, which is none of "
                "torch.optim.lr_scheduler; return one of these, such as LambdaLR with a function of the step, or set schedule",
            )
        elif not each.watches and each.interval not in ("step", "epoch"):
            yield coded(
                "lightning.scheduler-interval",
                f"pipeline.target: the scheduler {each.name} has interval={each.interval!r}; there are step and epoch",
            )
        elif each.by_metric and not each.watches:
            yield coded(
                "lightning.scheduler-metric",
                f"pipeline.target: the scheduler {each.name} has reduce_on_plateau=True, which a metric steps; a schedule here "
                "follows from the step alone; return torch's ReduceLROnPlateau, or set schedule: {name: plateau, ...}",
            )
    others = [each.name for each in schedulers if not each.watches]
    watching = [each for each in schedulers if each.watches]
    if others and (watching or course.schedule == plateaus.NAME):
        beside = watching[0].name if watching else f"schedule={course.schedule}"
        yield coded(
            "lightning.plateau-beside",
            f"pipeline.target: {beside} and the scheduler {others[0]} set one rate; leave one out; a warm-up before a plateau "
            "is schedule.warmup",
        )
    if course.schedule != plateaus.NAME:  # else the settings stand for it
        for each in watching:
            yield from plateaus.problems(each.scheduler, each.interval, each.frequency, each.monitor, course)


def plateau(schedulers: Sequence[_Scheduler], rates: Sequence[float]) -> Mapping[str, Any] | None:
    """The options of the schedule `plateau` that a ReduceLROnPlateau among them means; None where there is none. rates: of the
    optimizer."""
    found = next((each for each in schedulers if each.watches), None)
    return None if found is None else plateaus.options(found.scheduler, found.monitor, rates)


def factors(
    optimizer: torch.optim.Optimizer,
    schedulers: Sequence[_Scheduler],
    course: Course,
    behind: Callable[[int], None] = lambda _: None,
) -> list[float] | None:
    """For each step of the run; None where no scheduler says, or one that watches a metric. The optimizer has afterwards the
    rates that the factors multiply. behind: hears of each step before schedulers are stepped for it, since a factor may follow
    from the module's own place. Raises ConfigurationError with all that does not fit."""
    found = [*problems(schedulers, course)]
    tabulated = [each for each in schedulers if isinstance(each.scheduler, LRScheduler) and not each.watches]
    tabulated = [each for each in tabulated if each.interval in ("step", "epoch") and not each.by_metric]
    if not tabulated:
        _refuse(found)
        _restore(optimizer, [_rate(group) for group in optimizer.param_groups])
        return None
    bases = [float(group.get("initial_lr", _rate(group))) for group in optimizer.param_groups]
    rates, changed = _tabulated(optimizer, tabulated, course, behind)
    if changed is not None:
        found.append(
            coded(
                "lightning.scheduler-options",
                f"pipeline.target: the scheduler {tabulated[0].name} changes {changed!r} too, and a schedule here changes "
                "learning rates alone; give it cycle_momentum=False",
            )
        )
    if len(set(bases)) == 1 and bases[0] > 0:  # products with a power of two are exact
        bases = [2.0 ** math.floor(math.log2(bases[0]))] * len(bases)
    _restore(optimizer, bases)
    made = [_factor(at, bases) for at in rates]
    if None in made:
        found.append(
            coded(
                "lightning.scheduler-groups",
                f"pipeline.target: the scheduler {tabulated[0].name} gives the parameter groups other factors; here all groups "
                "have one schedule, each with its own lr: give LambdaLR one function",
            )
        )
    _refuse(found)
    return [factor for factor in made if factor is not None]


def _refuse(found: Sequence[str]) -> None:
    if found:
        raise ConfigurationError(found)


def _tabulated(
    optimizer: torch.optim.Optimizer, schedulers: Sequence[_Scheduler], course: Course, behind: Callable[[int], None]
) -> tuple[list[list[float]], str | None]:
    """The rates of the groups at each step; another option that the schedulers change."""
    rates: list[list[float]] = []
    others = _other_options(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no step of the optimizer came before
        for step in range(course.steps):
            rates.append([_rate(group) for group in optimizer.param_groups])
            behind(step)
            for each in _due(schedulers, step, course.epoch):
                each.scheduler.step()
    changed = _other_options(optimizer)
    differing = (key for old, new in zip(others, changed, strict=True) for key in old if old[key] != new[key])
    return rates, next(differing, None)


def _due(schedulers: Sequence[_Scheduler], step: int, epoch: int) -> Iterator[_Scheduler]:
    """Those that are stepped after this step: first by steps of the epoch, then at its end."""
    number, place = divmod(step, epoch)
    for each in schedulers:
        if each.interval == "step" and (place + 1) % each.frequency == 0:
            yield each
    for each in schedulers:
        if each.interval == "epoch" and place + 1 == epoch and (number + 1) % each.frequency == 0:
            yield each


def _factor(rates: Sequence[float], bases: Sequence[float]) -> float | None:
    """One for all groups; None where they have several."""
    candidates = [_nearest(rate, base) for rate, base in zip(rates, bases, strict=True) if base]
    if not candidates:
        return 1.0
    first = candidates[0]
    return first if all(math.isclose(each, first, rel_tol=1e-9, abs_tol=1e-15) for each in candidates) else None


def _nearest(rate: float, base: float) -> float:
    """The factor with which base * factor is the rate, if a float near their quotient is."""
    quotient = rate / base
    near = (quotient, math.nextafter(quotient, math.inf), math.nextafter(quotient, 0.0))
    return next((each for each in near if base * each == rate), quotient)


def _restore(optimizer: torch.optim.Optimizer, rates: Sequence[float]) -> None:
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
        group.pop("initial_lr", None)
    for name in _LEFT_BEHIND:
        vars(optimizer).pop(name, None)


def _rate(group: Mapping[str, Any]) -> float:
    return float(group["lr"])


def _other_options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    mine = ("params", "lr", "initial_lr")
    return [{key: value for key, value in group.items() if key not in mine} for group in optimizer.param_groups]
