"""From 1 to `final` at the step `end`, or the last one, on a straight line, and `final` after it."""

from __future__ import annotations

from orchestrator.optim.schedules.moment import EndStep, FinalFactor, Moment


def linear(at: Moment, *, final: FinalFactor = 0.0, end: EndStep = None) -> float:
    return 1 + (final - 1) * at.part(end)
