"""A server's part where replicas run free: it hands deltas on until the sprint ends, and adds at the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from orchestrator.engine.asynchronous.rest import Nothing, Terms, rest
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
        return rest(self._exchange, Nothing(), state, self._terms)
