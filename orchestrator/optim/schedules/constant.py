"""The learning rate as it is, once it has warmed up."""

from __future__ import annotations

from orchestrator.optim.schedules.moment import Moment


def constant(at: Moment) -> float:  # noqa: ARG001
    return 1.0
