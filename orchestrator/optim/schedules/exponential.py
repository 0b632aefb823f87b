"""`gamma` to the power of the steps."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from orchestrator.optim.schedules.moment import Moment


def exponential(
    at: Moment, *, gamma: Annotated[float, Field(gt=0, description="The factor of a reduction.")] = 0.1
) -> float:
    return gamma**at.since
