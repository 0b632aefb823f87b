"""The table of learning-rate schedules: the factor on every learning rate as a pure function of the moment, so that nothing has
to be saved.

A schedule is a function `name(at: Moment, *, option, ...) -> float`; adding one is a file and a line in `SCHEDULES`. Its factor
counts after the warm-up, which is the same for all. A user's own is held to the laws at launch (`laws.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.common.registry import Table
from orchestrator.optim.schedules.constant import constant
from orchestrator.optim.schedules.cosine import cosine
from orchestrator.optim.schedules.exponential import exponential
from orchestrator.optim.schedules.inverse_sqrt import inverse_sqrt
from orchestrator.optim.schedules.linear import linear
from orchestrator.optim.schedules.moment import Moment
from orchestrator.optim.schedules.plateau import plateau
from orchestrator.optim.schedules.steps import steps

__all__ = ["SCHEDULES", "Moment", "build"]

SCHEDULES: Table[Callable[..., float]] = Table(
    "schedule",
    {
        "constant": constant,
        "linear": linear,
        "cosine": cosine,
        "exponential": exponential,
        "steps": steps,
        "inverse_sqrt": inverse_sqrt,
        "plateau": plateau,
    },
)


def build(name: str, options: Mapping[str, Any]) -> Callable[[Moment], float]:
    """The factor at a moment. Raises ConfigurationError."""
    schedule = SCHEDULES.build(name, options)

    def factor(at: Moment) -> float:
        return (at.step + 1) / at.warmup if at.step < at.warmup else schedule(at)

    return factor
