"""The interface between the loop and the way in which replicas advance: lockstep, and later other ways to synchronise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from orchestrator.engine.exchange.step_report import Requests
from orchestrator.engine.execution.run_state import RunState
from orchestrator.numerics.grid import Grid
from orchestrator.records.trace import Line


@dataclass(frozen=True)
class Outcome:
    """What one advance has done. lines: of the trace, one per step that was committed; grid: for the next one;
    requests: of all members together."""

    lines: tuple[Line, ...]
    grid: Grid
    requests: Requests


class Executor(Protocol):
    """A way to bring all replicas from one boundary to the next."""

    def advance(self, state: RunState) -> Outcome:
        """Bring all replicas to the next boundary, where they are equal. A call that raises has changed nothing of the
        run's state."""
