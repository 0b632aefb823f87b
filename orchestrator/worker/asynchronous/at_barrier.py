"""A worker's part in the rest after a sprint, live or repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from orchestrator.errors import OrchestratorError
from orchestrator.worker.asynchronous.free_replica import FreeReplica
from orchestrator.worker.asynchronous.reports import BarrierConsensus, BarrierReport, Done
from orchestrator.worker.voting.step_report import Requests


class Ran(Protocol):
    """A sprint that is over. clocks: per shard, where it ended as far as is known here; made: this worker's updates, in order;
    fault: of a hosted shard."""

    clocks: list[int]
    made: list[Done]
    fault: tuple[int, OrchestratorError] | None


class AtBarrier:
    """Implements `rest.Replica`."""

    def __init__(self, replica: FreeReplica, sprint: Ran, requests: Callable[[], Requests]) -> None:
        self._replica = replica
        self._sprint = sprint
        self._requests = requests

    def report(self) -> BarrierReport:
        fault = self._sprint.fault
        if fault is not None:
            return BarrierReport(failing_shard=fault[0])
        clocks = {shard: self._sprint.clocks[shard] for shard in self._replica.shards}
        return BarrierReport(None, self._requests(), clocks, self._replica.magnitudes(), self._replica.counters())

    def fault(self, shard: int) -> Exception | None:
        fault = self._sprint.fault
        return fault[1] if fault is not None and fault[0] == shard else None

    def contribute(self, consensus: BarrierConsensus) -> None:
        self._replica.contribute(consensus.magnitudes)

    def adopt(self, consensus: BarrierConsensus) -> int:
        return self._replica.adopt(len(consensus.clocks), consensus.magnitudes, consensus.counters)

    def made(self) -> Sequence[Done]:
        return self._sprint.made
