"""The interface between the loop and the way in which replicas advance: lockstep, or free between rests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from orchestrator.numerics.grid import Grid
from orchestrator.records.trace import Line
from orchestrator.worker.between_steps.run_state import Clocks, RunState, SecondVote
from orchestrator.worker.voting.step_report import Requests


@dataclass(frozen=True)
class Outcome:
    """What one advance has done. steps: those that are done in all; lines: of the trace, one for each that was done now; grid:
    for the next one; requests: of all members together; free: where replicas run free; second_vote: as of `RunState`."""

    steps: int
    lines: tuple[Line, ...]
    grid: Grid
    requests: Requests
    free: Clocks | None = None
    second_vote: SecondVote = ()


class Executor(Protocol):
    """A way to bring all replicas from one boundary to the next."""

    def advance(self, state: RunState) -> Outcome:
        """Bring all replicas to the next boundary, where they are equal. A call that raises has changed nothing of the
        run's state."""
