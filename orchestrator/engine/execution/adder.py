"""A server's part in a lockstep step (rule D5): an empty step report, no faults, nothing to apply."""

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
