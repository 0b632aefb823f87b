"""The requirements of the tests' runs, for the controller."""

from __future__ import annotations

from typing import Any

from orchestrator.config.plan import Members, Timeouts
from orchestrator.controller.state import Requirements

PATIENCE_S = 1e9  # nothing of a simulated run times out by itself


def required(
    *,
    shards: int,  # slices of a step
    start: int,  # workers to begin with
    least: int = 1,  # workers to go on with
    most: int | None = None,  # workers to grow to; None: as many as at the start
    spares: int = 0,  # prepared workers that wait
    servers: int = 0,  # that add up
    stages: int = 1,  # of the model
    start_s: float = PATIENCE_S,  # how long a start may go without progress
    step_s: float = PATIENCE_S,  # how long a step may go without progress
    unreachable_s: int = 5,  # after which an accused member that is not heard of is taken for dead
    **more: Any,  # what else is required
) -> Requirements:
    members = Members(start, least, start if most is None else most, spares, servers, stages)
    timeouts = Timeouts(start_s, step_s, PATIENCE_S, unreachable_s)
    return Requirements(shards=shards, members=members, timeouts=timeouts, **more)
