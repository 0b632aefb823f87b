"""torch's ReduceLROnPlateau as the schedule `plateau` of the settings: each parameter is an option of it, or refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from orchestrator.adapters.adapted import Course
from orchestrator.errors import coded

NAME = "plateau"
METRICS = "validation/"  # before the name of each metric that validation_step logs
_LOSS = METRICS + "loss"
_MOST_REDUCTIONS = 10_000
_MAY_BE_LEFT_OUT = ("min_change", "relative", "cooldown", "least")


def problems(
    scheduler: ReduceLROnPlateau, interval: str, frequency: int, monitor: str | None, course: Course
) -> Iterator[str]:
    """The traits of it that no schedule here has, a sentence each."""
    what = "pipeline.target: ReduceLROnPlateau"
    if course.schedule != "constant":
        yield coded(
            "lightning.plateau-schedule",
            f"{what} and schedule={course.schedule} set one rate; leave schedule out, or the scheduler",
        )
    if not course.evaluates_in_steps:
        yield coded(
            "lightning.plateau-evaluation",
            f"{what} looks at each evaluation; set evaluation.every=1epoch, as Lightning does, or a number of steps",
        )
    if interval != "epoch" or frequency != 1:
        yield coded(
            "lightning.plateau-interval",
            f"{what} has interval={interval!r} and frequency={frequency}, and here it looks at each evaluation; leave both "
            "out, and set evaluation.every in steps or epochs",
        )
    if monitor is None:
        yield coded(
            "lightning.plateau-monitor",
            f"{what} has no monitor; return it as {{'scheduler': ..., 'monitor': NAME}}, of what validation_step logs",
        )
    rates = _rates(scheduler)
    shares = {least / rate for least, rate in zip(scheduler.min_lrs, rates, strict=True) if rate}
    if len(shares) > 1:
        yield coded(
            "lightning.plateau-least",
            f"{what} has min_lr={scheduler.min_lrs}, which are several shares of the rates {rates}; here all groups have one "
            "factor: give each group the same share of its lr",
        )


def options(scheduler: ReduceLROnPlateau, monitor: str | None, rates: Sequence[float]) -> dict[str, Any]:
    """The options of the schedule; those at their defaults are left out. rates: with which training begins."""
    metric = _LOSS if monitor is None else METRICS + monitor
    found = {
        "gamma": float(scheduler.factor),
        "patience": scheduler.patience + 1,  # torch reduces at one more bad evaluation
        "metric": metric,
        "mode": scheduler.mode,
        "min_change": float(scheduler.threshold),
        "relative": scheduler.threshold_mode == "rel",
        "cooldown": scheduler.cooldown,
        "least": _least(scheduler, rates),
    }
    return {name: value for name, value in found.items() if value or name not in _MAY_BE_LEFT_OUT}


def said(given: Mapping[str, Any]) -> str:
    """The options as a line of a configuration."""
    return f"schedule: {{name: {NAME}, {', '.join(f'{name}: {value}' for name, value in given.items())}}}"


def _rates(scheduler: ReduceLROnPlateau) -> list[float]:
    return [float(group["lr"]) for group in scheduler.optimizer.param_groups]


def _least(scheduler: ReduceLROnPlateau, rates: Sequence[float]) -> float:
    """The factor at which its reductions end: at min_lr, and where they would be smaller than eps."""
    base = max(rates)
    rate, least = base, scheduler.min_lrs[rates.index(base)]
    for _ in range(_MOST_REDUCTIONS):
        lower = max(rate * scheduler.factor, least)
        if rate - lower <= scheduler.eps:
            return rate / base
        rate = lower
    return 0.0
