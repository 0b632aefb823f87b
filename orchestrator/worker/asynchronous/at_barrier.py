"""A worker's part in the rest after an async phase, live or repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from orchestrator.errors import OrchestratorError
from orchestrator.worker.asynchronous.free_replica import FreeReplica
from orchestrator.worker.asynchronous.reports import BarrierConsensus, BarrierReport, CompletedUpdate
from orchestrator.worker.step_report import Requests


class CompletedPhase(Protocol):
    """An async phase that is over."""

    clocks: list[int]  # per shard, where it ended as far as is known here
    updates_made: list[CompletedUpdate]  # this worker's, in order
    fault: tuple[int, OrchestratorError] | None  # of a hosted shard
    damaged: Mapping[int, int]  # the peers from whose cards updates have arrived otherwise, by the origin of these


class AtBarrier:
    """Implements `sync_barrier.Replica`."""

    def __init__(self, replica: FreeReplica, async_phase: CompletedPhase, requests: Callable[[], Requests]) -> None:
        self._replica = replica
        self._async_phase = async_phase
        self._requests = requests

    def damaged(self) -> Mapping[int, int]:
        return self._async_phase.damaged

    def report(self) -> BarrierReport:
        fault = self._async_phase.fault
        if fault is not None:
            return BarrierReport(failing_shard=fault[0])
        clocks = {shard: self._async_phase.clocks[shard] for shard in self._replica.shards}
        return BarrierReport(None, self._requests(), clocks, self._replica.magnitudes(), self._replica.counters())

    def fault(self, shard: int) -> Exception | None:
        fault = self._async_phase.fault
        return fault[1] if fault is not None and fault[0] == shard else None

    def contribute(self, consensus: BarrierConsensus) -> int:
        return self._replica.contribute(consensus.magnitudes)

    def adopt(self, consensus: BarrierConsensus, printed: int) -> int:
        return self._replica.adopt(len(consensus.clocks), consensus.magnitudes, consensus.counters, printed)

    def updates_made(self) -> Sequence[CompletedUpdate]:
        return self._async_phase.updates_made
