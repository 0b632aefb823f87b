"""A reduction by `gamma` after every so many steps or epochs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from orchestrator.common.values import Span
from orchestrator.optim.schedules.moment import Moment


def steps(
    at: Moment,
    *,
    gamma: Annotated[float, Field(gt=0, description="The factor of a reduction.")] = 0.1,
    every: Annotated[Span, Field(description="How far it is from one reduction to the next.")],
) -> float:
    return gamma ** (at.since // every.in_steps(at.epoch))
