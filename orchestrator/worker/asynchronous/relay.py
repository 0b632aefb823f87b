"""A server's part where replicas run free: it hands deltas on until the async phase ends, and adds at the rest.

If the topology lets it know of all updates, it also holds a slice of the parameters (`held_slice.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from orchestrator.comm.collectives import Exchange, Memory
from orchestrator.worker.asynchronous.held_slice import HeldSlice
from orchestrator.worker.asynchronous.sync_barrier import Nothing, Terms, synchronize
from orchestrator.worker.asynchronous.traffic import Traffic
from orchestrator.worker.between_steps.run_state import RunState
from orchestrator.worker.between_steps.timing import Patience
from orchestrator.worker.step.executor import StepOutcome

_WAIT_S: Final = 0.05


class Relay:
    """An Executor of a member that hosts no shards."""

    def __init__(
        self,
        exchange: Exchange,  # with the other members, at sync barriers
        make: Callable[[int], Traffic],  # the traffic of an async phase, by its number
        terms: Terms,  # of the run and the generation
        held: HeldSlice | None,  # the slice that this member holds; None: it holds none
        memory: Memory,  # in which the sum of a sync barrier is added up
        deadline_s: float,  # seconds to wait for the end of an async phase
    ) -> None:
        self._exchange = exchange
        self._make = make
        self._terms = terms
        self._held = held
        self._memory = memory
        self._deadline_s = deadline_s

    def advance(self, state: RunState) -> StepOutcome:
        """Raises Withdrawn, and what the transport raises."""
        assert state.free is not None
        traffic, shards = self._make(state.free.barriers), self._terms.shape.shards
        if self._held is not None:
            self._held.begin(state.free.clocks)
        while not traffic.rung:
            traffic.take(shards, self._held, _WAIT_S)
        traffic.end(shards, Patience(self._deadline_s), _WAIT_S, self._held)
        outcome = synchronize(self._exchange, Nothing(), state, self._terms)
        assert outcome.free is not None
        if self._held is not None:
            self._held.at_barrier(self._memory.result, outcome.free.clocks)
        return outcome
