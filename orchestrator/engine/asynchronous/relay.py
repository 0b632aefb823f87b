"""A server's part where replicas run free: it hands deltas on until the sprint ends, and adds at the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from orchestrator.engine.asynchronous.reports import Done, RestConsensus, RestReport
from orchestrator.engine.asynchronous.rest import Terms, rest
from orchestrator.engine.asynchronous.traffic import Traffic
from orchestrator.engine.exchange.collectives import Exchange
from orchestrator.engine.execution.executor import Outcome
from orchestrator.engine.execution.run_state import RunState

_WAIT_S: Final = 0.05


class Relay:
    """An Executor of a member that hosts no shards."""

    def __init__(self, exchange: Exchange, make: Callable[[int], Traffic], terms: Terms) -> None:
        self._exchange = exchange
        self._make = make
        self._terms = terms

    def advance(self, state: RunState) -> Outcome:
        """Raises Withdrawn, and what the transport raises."""
        assert state.free is not None
        traffic, shards = self._make(state.free.rests), self._terms.shape.shards
        while not traffic.rung:
            traffic.take(shards, None, _WAIT_S)
        traffic.end(shards, _WAIT_S)
        return rest(self._exchange, _Nothing(), state, self._terms)


class _Nothing:
    """Implements `rest.Replica` for a member without a replica."""

    def report(self) -> RestReport:
        return RestReport()

    def fault(self, shard: int) -> Exception | None:  # noqa: ARG002
        return None

    def contribute(self, consensus: RestConsensus) -> None:
        pass

    def adopt(self, consensus: RestConsensus) -> int | None:  # noqa: ARG002
        return None

    def made(self) -> Sequence[Done]:
        return ()
