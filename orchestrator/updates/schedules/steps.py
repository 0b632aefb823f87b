"""A reduction by `gamma` after every so many steps."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from orchestrator.updates.schedules.moment import Moment


def steps(
    at: Moment,
    *,
    gamma: Annotated[float, Field(gt=0, description="The factor of a reduction.")] = 0.1,
    every: Annotated[int, Field(ge=1, description="The steps between two reductions.")],
) -> float:
    return gamma ** (at.since // every)
