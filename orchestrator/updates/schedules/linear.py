"""From 1 to `final` at the step `end`, or the last one, on a straight line, and `final` after it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from orchestrator.updates.schedules.moment import Moment
from orchestrator.values import Span


def linear(
    at: Moment,
    *,
    final: Annotated[float, Field(ge=0, description="The factor at the end.")] = 0.0,
    end: Annotated[
        Span | None, Field(description="The step at which the factor is `final`, and stays so; null: the last one.")
    ] = None,
) -> float:
    return 1 + (final - 1) * at.part(end)
