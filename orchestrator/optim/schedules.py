"""Learning-rate schedules: the factor on every learning rate as a pure function of the moment, so that nothing has to be saved.

A schedule is a function `name(at: Moment, *, option, ...) -> float`; adding one is a function here and a line in `SCHEDULES`.
Its factor counts after the warm-up, which is the same for all. A user's own is held to the laws at launch (`schedule_laws.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from orchestrator.common.registry import Table
from orchestrator.common.values import Span

# Options that several schedules have.
Gamma = Annotated[float, Field(gt=0, description="The factor of a reduction.")]
FinalFactor = Annotated[float, Field(ge=0, description="The factor at the end.")]
EndStep = Annotated[
    Span | None, Field(description="The step at which the factor is `final`, and stays so; null: the last one.")
]


@dataclass(frozen=True)
class Moment:
    """The place in a run for which a schedule gives its factor. step: counted from 0, of so many `steps`. warmup: the first
    of them, in which the factor rises from 1 / warmup to 1. reductions: how often the watched metric has ceased to improve,
    for `plateau`. epoch: the steps of one."""

    step: int
    steps: int
    warmup: int = 0
    reductions: int = 0
    epoch: int = 1

    @property
    def since(self) -> int:
        """The steps since the end of the warm-up."""
        return self.step - self.warmup

    def part(self, end: Span | None = None) -> float:
        """How much of the way from the warm-up to `end`, or the last step, is done, from 0 to 1."""
        last = self.steps - 1 if end is None else end.in_steps(self.epoch)
        return min(1.0, self.since / max(1, last - self.warmup))


def constant(at: Moment) -> float:  # noqa: ARG001
    """The learning rate stays as it is, once it has warmed up."""
    return 1.0


def linear(at: Moment, *, final: FinalFactor = 0.0, end: EndStep = None) -> float:
    """The factor falls from 1 to `final` on a straight line, until the step `end` or the last one, and stays there."""
    return 1 + (final - 1) * at.part(end)


def cosine(at: Moment, *, final: FinalFactor = 0.0, end: EndStep = None) -> float:
    """The factor falls from 1 to `final` along half a cosine, until the step `end` or the last one, and stays there.

    Source: Loshchilov and Hutter, "SGDR" (2017), equation 5.
    """
    return final + (1 - final) * (1 + math.cos(math.pi * at.part(end))) / 2


def exponential(at: Moment, *, gamma: Gamma = 0.1) -> float:
    """The factor is `gamma` to the power of the steps: each step multiplies the rate by `gamma`."""
    return gamma**at.since


def steps(
    at: Moment,
    *,
    gamma: Gamma = 0.1,
    every: Annotated[Span, Field(description="How far it is from one reduction to the next.")],
) -> float:
    """The factor is multiplied by `gamma` after each span of `every` steps or epochs."""
    return gamma ** (at.since // every.in_steps(at.epoch))


def inverse_sqrt(at: Moment) -> float:
    """The factor falls as one over the square root of the step.

    Source: Vaswani et al., "Attention Is All You Need" (2017), section 5.3.
    """
    return math.sqrt(max(1, at.warmup) / (at.step + 1))


def plateau(
    at: Moment,
    *,
    gamma: Gamma = 0.1,
    patience: Annotated[int, Field(ge=1, description="Evaluations without improvement until a reduction.")] = 3,  # noqa: ARG001
    metric: Annotated[str, Field(min_length=1, description="The metric to watch.")] = "validation/loss",  # noqa: ARG001
    mode: Annotated[Literal["min", "max"], Field(description="Whether less or more is better.")] = "min",  # noqa: ARG001
    min_change: Annotated[float, Field(ge=0, description="The smallest change that is an improvement.")] = 0.0,  # noqa: ARG001
    relative: Annotated[bool, Field(description="Whether `min_change` is a share of the best value.")] = False,  # noqa: ARG001
    cooldown: Annotated[int, Field(ge=0, description="Evaluations after a reduction that do not count.")] = 0,  # noqa: ARG001
    least: Annotated[float, Field(ge=0, description="The factor below which no reduction goes.")] = 0.0,
) -> float:
    """The factor is multiplied by `gamma` each time that a metric has not improved for `patience` evaluations.

    `optim.patience` counts these times, at every member alike.
    """
    return max(gamma**at.reductions, min(least, 1.0))


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
