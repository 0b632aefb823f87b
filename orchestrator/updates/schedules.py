"""Learning-rate schedules: the factor on every learning rate as a pure function of the step, so that nothing has to be saved.

    constant       1
    linear         from 1 to `final` at the step `end`, or the last one, and `final` after it
    cosine         the same along half a cosine; Loshchilov and Hutter, "SGDR" (2017), equation 5
    exponential    gamma ** step
    steps          gamma ** (step // every)
    inverse_sqrt   sqrt(warmup / step); Vaswani et al., "Attention Is All You Need" (2017), section 5.3
    plateau        gamma ** reductions, where `control.patience` counts the reductions

Steps count from the end of the warm-up, in which the factor rises from 1 / warmup to 1; `end` counts from the run's beginning.
A pipeline with a `rate` of its own gives the factor itself (engine.work).
"""

from __future__ import annotations

import math

import torch

from orchestrator.settings import ScheduleSettings


def factor(schedule: ScheduleSettings, step: int, steps: int, reductions: int = 0, *, epoch: int = 1) -> float:
    """The factor at `step`, counted from 0, of a run of `steps`. reductions: of the plateau schedule; epoch: its steps."""
    if step < schedule.warmup:
        return (step + 1) / schedule.warmup
    since = step - schedule.warmup
    end = steps - 1 if schedule.end is None else schedule.end.in_steps(epoch)
    part = min(1.0, since / max(1, end - schedule.warmup))
    every = 1 if schedule.every is None else schedule.every.in_steps(epoch)
    final = 0.0 if schedule.final is None else schedule.final
    gamma = 0.1 if schedule.gamma is None else schedule.gamma
    factors = {
        "constant": lambda: 1.0,
        "linear": lambda: 1 + (final - 1) * part,
        "cosine": lambda: final + (1 - final) * (1 + math.cos(math.pi * part)) / 2,
        "exponential": lambda: gamma**since,
        "steps": lambda: gamma ** (since // every),
        "inverse_sqrt": lambda: math.sqrt(max(1, schedule.warmup) / (step + 1)),
        "plateau": lambda: gamma**reductions,
    }
    return factors[schedule.name]()


def set_rates(optimizer: torch.optim.Optimizer, rates: list[float], factor: float) -> None:
    """Give each parameter group its base rate times the factor."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * factor


def rates_of(optimizer: torch.optim.Optimizer) -> list[float]:
    """The base rates: those that the optimizer was built with."""
    return [float(group["lr"]) for group in optimizer.param_groups]
