"""A reduction by `gamma` whenever a metric has ceased to improve; `optim.patience` counts them, at every member alike."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from orchestrator.optim.schedules.moment import Moment


def plateau(
    at: Moment,
    *,
    gamma: Annotated[float, Field(gt=0, description="The factor of a reduction.")] = 0.1,
    patience: Annotated[int, Field(ge=1, description="Evaluations without improvement until a reduction.")] = 3,  # noqa: ARG001
    metric: Annotated[str, Field(min_length=1, description="The metric to watch.")] = "validation/loss",  # noqa: ARG001
    mode: Annotated[Literal["min", "max"], Field(description="Whether less or more is better.")] = "min",  # noqa: ARG001
) -> float:
    return gamma**at.reductions
