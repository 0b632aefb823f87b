"""A server's part in a lockstep step: it has nothing to say and nothing to learn, it only adds (rule D5)."""

from __future__ import annotations

from orchestrator.engine.exchange.step_report import Consensus, StepReport
from orchestrator.engine.execution.run_state import RunState
from orchestrator.numerics.grid import Grid


class Adder:
    def contribute(self, step: int, attempt: int, grid: Grid) -> StepReport:  # noqa: ARG002
        return StepReport()

    def fault(self, shard: int) -> Exception | None:  # noqa: ARG002
        return None

    def apply(self, state: RunState, consensus: Consensus) -> None:
        pass
