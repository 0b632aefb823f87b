"""The interface between the loop and the way in which replicas advance: lockstep, or free between sync barriers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from orchestrator.numerics.grid import Grid
from orchestrator.records.trace import Line
from orchestrator.worker.between_steps.run_state import Clocks, RunState, SecondVote
from orchestrator.worker.step_report import Requests


@dataclass(frozen=True)
class StepOutcome:
    """The outcome of one `advance`."""

    steps: int  # those that are done in all
    lines: tuple[Line, ...]  # of the trace, one for each step that was done now
    grid: Grid  # for the next step
    requests: Requests  # of all members together
    free: Clocks | None = None  # where replicas run free; None in lockstep
    second_vote: SecondVote = ()  # as of `RunState`


class Executor(Protocol):
    """A way to bring all replicas from one boundary to the next."""

    def advance(self, state: RunState) -> StepOutcome:
        """Bring all replicas to the next boundary, where they are equal. A call that raises has changed nothing of the
        run's state."""
