"""From 1 to `final` at the last step, on a straight line."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from orchestrator.updates.schedules.moment import Moment


def linear(
    at: Moment, *, final: Annotated[float, Field(ge=0, description="The factor at the last step.")] = 0.0
) -> float:
    return 1 + (final - 1) * at.part()
