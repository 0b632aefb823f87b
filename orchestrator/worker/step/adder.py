"""A server's part in a lockstep step (rule D5): an empty step report, no faults, its part in the sums, nothing to apply."""

from __future__ import annotations

import torch

from orchestrator.comm.collectives import BUFFERS, Exchange
from orchestrator.numerics.grid import Grid
from orchestrator.records import trace
from orchestrator.worker.between_steps.run_state import RunState
from orchestrator.worker.step.carriers import Carriers
from orchestrator.worker.step.grid_carrier import GridCarrier
from orchestrator.worker.voting.step_report import Consensus, StepReport


class Adder:
    """A server's side of `lockstep.Member`. carriers: of a compression; grid_carrier: of clipped contributions; None if there
    is none. joins: whether the workers exchange buffers, which it hands on."""

    def __init__(
        self, carriers: Carriers | None = None, grid_carrier: GridCarrier | None = None, *, joins: bool = False
    ) -> None:
        self._carriers = carriers
        self._grid_carrier = grid_carrier
        self._joins = joins

    def contribute(self, step: int, attempt: int, grid: Grid) -> StepReport:  # noqa: ARG002
        return StepReport()

    def fault(self, shard: int) -> Exception | None:  # noqa: ARG002
        return None

    def total(self, exchange: Exchange, step: int, attempt: int, consensus: Consensus) -> int:
        """Returns the fingerprint of the sum; 0 for a compressed or clipped one, whose result a server does not have. A
        server reports no trace."""
        if self._grid_carrier is not None:
            self._grid_carrier.relay(exchange, step, attempt)
            return 0
        if self._joins:
            exchange.gather(step, attempt, BUFFERS, torch.empty(0, dtype=torch.uint8))
        if self._carriers is None:
            return exchange.total(step, attempt, consensus.total_weight)
        self._carriers.relay(exchange, step, consensus.total_weight)
        return 0

    def line(self, step: int, consensus: Consensus, fingerprint: int) -> trace.Line:
        """The loss is empty for clipped contributions: a server does not know it."""
        return trace.line(step, "" if self._grid_carrier is not None else consensus.loss, fingerprint)

    def make(self, state: RunState, consensus: Consensus) -> None:
        pass

    def apply(self, state: RunState, consensus: Consensus) -> None:
        pass
