"""The learning rates of an optimizer's parameter groups, which a schedule multiplies."""

from __future__ import annotations

import torch


def set_rates(optimizer: torch.optim.Optimizer, rates: list[float], factor: float) -> None:
    """Give each parameter group its base rate times the factor."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * factor


def rates_of(optimizer: torch.optim.Optimizer) -> list[float]:
    """The base rates: those that the optimizer was built with."""
    return [float(group["lr"]) for group in optimizer.param_groups]
