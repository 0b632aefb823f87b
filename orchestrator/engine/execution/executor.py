"""What the loop knows of how a run advances: the seam behind which lockstep stands, and every other way to synchronise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from orchestrator.engine.exchange.step_report import Requests
from orchestrator.engine.execution.run_state import RunState
from orchestrator.numerics.grid import Grid
from orchestrator.records.trace import Line


@dataclass(frozen=True)
class Outcome:
    """lines: of the trace, one per step that is committed now; grid: for the next one; requests: of all members together."""

    lines: tuple[Line, ...]
    grid: Grid
    requests: Requests


class Executor(Protocol):
    def advance(self, state: RunState) -> Outcome:
        """Bring all replicas to the next boundary, where they are equal. A call that raises has changed nothing that belongs to
        the state of the run."""
