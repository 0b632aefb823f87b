"""An async phase that is repeated from its record: every update reads exactly what it read then, whoever computes it now.

Each hosted shard has a reader of its own, a copy of the parameters that takes in others' updates up to the clocks that the
shard's next update has read. The updates are computed in waves: all whose readings are done, among the first in canonical
order, so a wave can always be found, and what has to be kept is bounded. After a wave everybody gets its updates. So a replay
needs no windows and no polling, and depends neither on the number of workers nor on timing.

Source: the design of asynchronous modes, section 3.
"""

from __future__ import annotations

import base64
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from orchestrator.comm.collectives import ASYNC_PHASE, Exchange
from orchestrator.errors import OrchestratorError
from orchestrator.records.clocks import AsyncPhase, Update
from orchestrator.worker.asynchronous import shard_rows
from orchestrator.worker.asynchronous.at_barrier import AtBarrier
from orchestrator.worker.asynchronous.free_replica import FreeReplica
from orchestrator.worker.asynchronous.reports import CompletedUpdate
from orchestrator.worker.asynchronous.shard_updates import Reading
from orchestrator.worker.asynchronous.sync_barrier import Nothing, Terms, synchronize
from orchestrator.worker.between_steps.run_state import RunState
from orchestrator.worker.member.generation import Withdrawn
from orchestrator.worker.step.executor import StepOutcome
from orchestrator.worker.step_report import Requests

_AHEAD: Final = 4  # waves reach so many updates per shard beyond the first that is not done
_FAILED: Final = -1

Key = tuple[int, int]  # a shard and its clock


class Replays:
    """An Executor whose `advance` repeats an async phase and its sync barrier."""

    def __init__(
        self,
        replica: FreeReplica,  # this worker's, with the states of its shards
        exchange: Exchange,  # with the other members
        terms: Terms,  # of the run and the generation
        records: Sequence[Mapping[str, Any]],  # of the sync barriers of the run that is repeated
        requests: Callable[[], Requests],  # what this member requests at a sync barrier
    ) -> None:
        self._replica = replica
        self._exchange = exchange
        self._terms = terms
        self._records = records
        self._requests = requests

    def advance(self, state: RunState) -> StepOutcome:
        """Raises PipelineRaised, NonFinite, Inconsistent, Withdrawn, Distrusted, and what the transport raises."""
        assert state.free is not None
        record, async_phase = recorded(self._records, state)
        number, own = state.free.barriers, self._replica.rows()
        self._replica.begin(shard_rows.fallback_rows(self._exchange, number, record["heirs"], own))
        try:
            repeated = _Repeated(self._replica, self._exchange, async_phase, self._terms, state)
            repeated.run()
            at_barrier = AtBarrier(self._replica, repeated, self._requests)
            return synchronize(self._exchange, at_barrier, state, self._terms, (record, async_phase))
        except BaseException:
            self._replica.give_up()
            raise


class ReplayRelay:
    """An Executor of a member that hosts no shards: it hands on what the workers of a replay tell each other, and adds."""

    def __init__(self, exchange: Exchange, terms: Terms, records: Sequence[Mapping[str, Any]]) -> None:
        self._exchange = exchange
        self._terms = terms
        self._records = records

    def advance(self, state: RunState) -> StepOutcome:
        """Raises Withdrawn, and what the transport raises."""
        assert state.free is not None
        record, async_phase = recorded(self._records, state)
        shard_rows.fallback_rows(self._exchange, state.free.barriers, record["heirs"], {})
        for wave, _ in enumerate(waves(async_phase)):
            self._exchange.gather(state.free.barriers, wave, ASYNC_PHASE, torch.empty(0, dtype=torch.uint8))
        return synchronize(self._exchange, Nothing(), state, self._terms, (record, async_phase))


def recorded(records: Sequence[Mapping[str, Any]], state: RunState) -> tuple[Mapping[str, Any], AsyncPhase]:
    """The record of the rest that comes next, and the async phase before it. Raises ValueError for a damaged one."""
    assert state.free is not None
    record = records[state.free.barriers]
    return record, AsyncPhase.decode(base64.b64decode(record["updates"]), state.free.clocks)


def waves(async_phase: AsyncPhase) -> Iterator[list[Key]]:
    """The updates of an async phase, some at a time: those whose readings are in earlier waves, among the first in canonical
    order."""
    wants, order, clocks = async_phase.wants(), async_phase.order(), list(async_phase.start)
    first = 0
    while first < len(order):
        near = order[first : first + _AHEAD * len(clocks)]
        ready = [
            (shard, clock)
            for shard, clock in near
            if clocks[shard] == clock and all(map(operator.ge, clocks, wants[shard, clock]))
        ]
        for shard, _ in ready:
            clocks[shard] += 1
        while first < len(order) and clocks[order[first][0]] > order[first][1]:
            first += 1
        yield ready


class _Repeated:
    """One async phase, repeated by one worker together with the others."""

    def __init__(
        self,
        replica: FreeReplica,  # to which updates are added
        exchange: Exchange,  # brings the updates of other workers
        async_phase: AsyncPhase,  # as it was recorded
        terms: Terms,  # of the run and the generation
        state: RunState,  # of the run, as of the last sync barrier
    ) -> None:
        assert state.free is not None
        self._replica = replica
        self._exchange = exchange
        self._state = state
        self._number = state.free.barriers
        self._steps = terms.steps
        self._waves = waves(async_phase)
        self._wants = async_phase.wants()
        self._end = async_phase.end
        self.clocks = list(async_phase.start)
        self.updates_made: list[CompletedUpdate] = []
        self.fault: tuple[int, OrchestratorError] | None = None
        self.damaged: Mapping[int, int] = {}  # updates come through host memory
        self._readers = {shard: replica.start() for shard in replica.shards}
        self._seen = {shard: list(async_phase.start) for shard in replica.shards}
        self._kept: dict[Key, torch.Tensor] = {}

    def run(self) -> None:
        """Raises Withdrawn where another member's shard failed."""
        for wave, ready in enumerate(self._waves):
            self._exchange_wave(wave, self._computed(ready))
            for shard, _ in ready:
                self.clocks[shard] += 1
            self._catch_up()
        self._replica.check_ledger()

    def _computed(self, ready: Sequence[Key]) -> torch.Tensor:
        """The hosted ones of these updates, as they travel; a fault travels as a mark."""
        payloads: list[torch.Tensor] = []
        for shard, clock in ready:
            if shard not in self._readers:
                continue
            try:
                payloads.append(self._update(shard, clock))
            except OrchestratorError as error:
                self.fault = (shard, error)
                return torch.tensor([_FAILED, shard], dtype=torch.int64).view(torch.uint8)
        return torch.cat(payloads).view(torch.uint8) if payloads else torch.empty(0, dtype=torch.uint8)

    def _update(self, shard: int, clock: int) -> torch.Tensor:
        """shard, clock, fingerprint, then the update."""
        wanted = self._wants[shard, clock]
        assert tuple(self._seen[shard]) == wanted, f"the reader of shard {shard} stands elsewhere"
        reading = Reading(clock, sum(wanted), self._steps, self._state.reductions)
        loss, update = self._replica.compute(shard, reading, self._readers[shard])
        printed = self._replica.apply_own(update)
        self.updates_made.append(CompletedUpdate(Update(shard, ()), loss, printed))
        return torch.cat([torch.tensor([shard, clock, printed], dtype=torch.int64), update.cpu()])

    def _exchange_wave(self, wave: int, own: torch.Tensor) -> None:
        size = self._replica.size + 3
        for payload in self._exchange.gather(self._number, wave, ASYNC_PHASE, own):
            numbers = payload.view(torch.int64)
            if numbers.numel() == 2:
                shard = int(numbers[1])
                raise self.fault[1] if self.fault else Withdrawn(f"shard {shard} failed")
            for start in range(0, numbers.numel(), size):
                shard, clock, printed = numbers[start : start + 3].tolist()
                update = self._replica.replica.staging.from_peer(numbers[start + 3 : start + size])
                self._kept[shard, clock] = update
                if shard not in self._readers:
                    self._replica.apply_other(update, printed)

    def _catch_up(self) -> None:
        """Each reader takes in what its shard's next update has read; what no reader needs any more is forgotten."""
        for shard, reader in self._readers.items():
            seen = self._seen[shard]
            wanted = self._wants.get((shard, self.clocks[shard]))
            for other, end in enumerate(wanted or ()):
                while seen[other] < min(end, self.clocks[other]):
                    reader += self._kept[other, seen[other]]
                    seen[other] += 1
        reading = [shard for shard in self._readers if self.clocks[shard] < self._end[shard]]
        for other, clock in list(self._kept):
            if all(self._seen[shard][other] > clock for shard in reading):
                del self._kept[other, clock]
