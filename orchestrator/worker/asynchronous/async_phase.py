"""Async phases: the executor under which replicas run free, and then rest.

    until a sync barrier is due, or somebody rings:
        apply what has come                   poll, never waiting while there is something to compute
        compute one hosted shard's update     the one that is furthest behind, where the mode lets it start
        send it, where the window has room    otherwise it is added to what is sent next
    ring, and rest

A sync barrier is due after so many steps, where an evaluation or a checkpoint is due, at the end of the run, and when
somebody asks for one: to regroup, to stop, to save. The sum of the clocks that a worker knows decides, so the run overshoots
by a few updates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import torch

from orchestrator.comm.collectives import Exchange
from orchestrator.comm.synchronization import Mode, View
from orchestrator.comm.transports.base import DeadlineExceeded
from orchestrator.errors import OrchestratorError
from orchestrator.numerics.exact import wrap
from orchestrator.records.clocks import Update
from orchestrator.worker.asynchronous import deltas
from orchestrator.worker.asynchronous.at_barrier import AtBarrier
from orchestrator.worker.asynchronous.deltas import APPLIED, DELTA, Deliveries, Delta, Header
from orchestrator.worker.asynchronous.free_replica import FreeReplica
from orchestrator.worker.asynchronous.reports import CompletedUpdate
from orchestrator.worker.asynchronous.shard_updates import Reading
from orchestrator.worker.asynchronous.sync_barrier import Terms, synchronize
from orchestrator.worker.asynchronous.traffic import Traffic
from orchestrator.worker.between_steps.run_state import RunState
from orchestrator.worker.between_steps.timing import Patience, Timing
from orchestrator.worker.member.heartbeat import Halt
from orchestrator.worker.step.executor import StepOutcome

_WAIT_S: Final = 0.05  # between two looks at requests, while nothing may start

Make = Callable[[int], Traffic]  # the traffic of an async phase, by its number


class AsyncPhases:
    """An Executor whose `advance` is an async phase and its sync barrier. One that raises has brought the replica back to the
    last sync barrier."""

    def __init__(
        self,
        replica: FreeReplica,  # this worker's, with the states of its shards
        mode: Mode,  # decides which update may start
        exchange: Exchange,  # with the other members, at sync barriers
        make: Make,  # the traffic of an async phase, by its number
        terms: Terms,  # what a sync barrier has to know of the run
        cadence: Cadence,  # when a sync barrier is due
        me: int,  # this worker's rank
    ) -> None:
        self._replica = replica
        self._mode = mode
        self._exchange = exchange
        self._make = make
        self._terms = terms
        self._cadence = cadence
        self._me = me

    def advance(self, state: RunState) -> StepOutcome:
        """Raises PipelineRaised, NonFinite, Inconsistent, Withdrawn, Distrusted, and what the transport raises."""
        assert state.free is not None
        self._replica.begin()
        try:
            traffic = self._make(state.free.barriers)
            if self._me == 0 and traffic.is_held:
                traffic.begin(*self._replica.shown())
            async_phase = _AsyncPhase(self._replica, self._mode, traffic, self._terms, state, self._me)
            async_phase.run(self._cadence)
            return synchronize(
                self._exchange, AtBarrier(self._replica, async_phase, self._cadence.requests), state, self._terms
            )
        except BaseException:
            self._replica.give_up()
            raise


class Cadence:
    """When a sync barrier is due: where an evaluation or a checkpoint is, every so many steps, and when this member requests
    it. deadline_s: of a wait in which no clock moves."""

    def __init__(self, timing: Timing, every: int, deadline_s: float) -> None:
        self.requests = timing.requests
        self.deadline_s = deadline_s
        self._timing = timing
        self._every = every

    def due(self, steps: int) -> int:
        """The step after which a sync barrier is due next."""
        others = [timer.next(steps) for timer in (self._timing.evaluation, self._timing.checkpoint)]
        return min([(steps // self._every + 1) * self._every, *(step for step in others if step is not None)])

    def asks(self, *, further: bool) -> bool:
        """Whether this member requests what wants a sync barrier. further: a step was completed since the last one; before that
        there is nothing to evaluate or to save, and a short interval would let no update be made."""
        requests = self.requests()
        return requests.halt != Halt.NONE or (further and (requests.save or requests.evaluate))


class _AsyncPhase:
    """One async phase of one worker."""

    def __init__(
        self,
        replica: FreeReplica,  # to which updates are added
        mode: Mode,  # decides which update may start
        traffic: Traffic,  # messages of this async phase
        terms: Terms,  # of the run and the generation
        state: RunState,  # of the run, as of the last sync barrier
        me: int,  # this worker's rank
    ) -> None:
        assert state.free is not None
        self._replica = replica
        self._mode = mode
        self._traffic = traffic
        self._memory = memory = traffic.memory
        self._terms = terms
        self._state = state
        self._me = me
        workers = len(terms.hosted)
        self.clocks = list(state.free.clocks)  # as applied here
        self.updates_made: list[CompletedUpdate] = []  # its own updates, in order
        self.fault: tuple[int, OrchestratorError] | None = None
        self.damaged: Mapping[int, int] = {}
        compares = terms.copies and len(memory.borders) == 2  # else a delta comes in slices from several peers
        self._copies = _Copies(replica, traffic, workers) if compares else None
        self._deliveries = Deliveries(workers, self._me, len(memory.borders) - 1)
        self._alone = workers == 1
        self._known = [0] * workers  # updates of each worker that are applied here
        self._read = [0] * workers  # of them, when the last own update began
        self._deltas_read = [0] * workers
        self._unsent = [0] * len(self.clocks)
        self._unsent_print = 0
        self._outbox = None if self._alone else memory.pending
        self._news = False
        if self._outbox is not None:
            self._outbox.zero_()

    def run(self, cadence: Cadence) -> None:
        """Until a sync barrier; a fault of a shard is kept for its vote, and so is a damaged copy, from which a fault may
        come."""
        due = min(cadence.due(self._state.steps), self._terms.steps) * len(self.clocks)
        patience = Patience(cadence.deadline_s)
        while not self._traffic.rung and sum(self.clocks) < due and not cadence.asks(further=self._further):
            shard = self._next()
            if patience.exhausted(list(self.clocks) if shard is None else None):
                raise DeadlineExceeded(self._awaited, None, patience.limit_s)
            if shard is not None:
                try:
                    self._update(shard)
                except OrchestratorError as error:
                    self.fault = (shard, error)
                    break
            self._send()
            self._take(0.0 if shard is not None else _WAIT_S)
        self._traffic.end(len(self.clocks), Patience(cadence.deadline_s), _WAIT_S)
        self.damaged = {} if self._copies is None else self._copies.damaged(self._deliveries.waiting())
        if self.fault is None and not self.damaged:
            self._replica.check_ledger()

    @property
    def _awaited(self) -> int:
        """The other worker that hosts the shard which is furthest behind: a wait is for that one."""
        others = [(self.clocks[shard], w) for w, own in enumerate(self._terms.hosted) for shard in own if w != self._me]
        return min(others)[1]

    @property
    def _further(self) -> bool:
        return sum(self.clocks) // len(self.clocks) > self._state.steps

    def _next(self) -> int | None:
        """The hosted shard that is furthest behind and may start."""
        waits = self._mode.waits
        able = [shard for shard in self._replica.shards if waits(View(self.clocks, shard)) is None]
        return min(able, key=lambda shard: (self.clocks[shard], shard), default=None)

    def _update(self, shard: int) -> None:
        reading = Reading(self.clocks[shard], sum(self.clocks), self._terms.steps, self._state.reductions)
        self._deltas_read = list(self._deliveries.applied)
        reads = tuple(
            (worker, known - before)
            for worker, (known, before) in enumerate(zip(self._known, self._read, strict=True))
            if worker != self._me and known > before
        )
        self._read = list(self._known)
        loss, update = self._replica.compute(shard, reading)
        printed = self._replica.apply_own(update, *(() if self._outbox is None else (self._outbox,)))
        self.clocks[shard] += 1
        self.updates_made.append(CompletedUpdate(Update(shard, reads), loss, printed))
        if self._outbox is not None:
            self._unsent[shard] += 1
            self._unsent_print = wrap(self._unsent_print + printed)

    def _send(self) -> None:
        """Send what is unsent where the window has room, and otherwise an acknowledgement, where one is new."""
        if self._outbox is None:
            return
        if any(self._unsent) and self._deliveries.unacknowledged < self._memory.window:
            number = self._deliveries.sent()
            self._memory.outgoing(number).copy_(self._outbox)
            self._traffic.send(self._header(DELTA, number))
            self._outbox.zero_()
            self._unsent, self._unsent_print = [0] * len(self.clocks), 0
        elif self._news:
            self._traffic.send(self._header(APPLIED, 0))
        self._news = False

    def _header(self, kind: int, number: int) -> Header:
        applied = tuple(self._deliveries.applied)
        return Header(
            kind, self._me, number, self._unsent_print, tuple(self._unsent), tuple(self._deltas_read), applied
        )

    def _take(self, timeout_s: float) -> None:
        """Take what has come, and apply what may be applied."""
        if not self._traffic.has_peers:
            return
        self._traffic.take(len(self.clocks), self._deliveries, timeout_s)
        while (delta := self._deliveries.next()) is not None:
            header, borders = delta.header, self._memory.borders
            if self._copies is not None:
                self._copies.apply(header, delta.slices[0])
            else:
                for part, payload in delta.slices.items():
                    printed = header.fingerprint if part == 0 else 0
                    self._replica.apply_other(payload, printed, slice(borders[part], borders[part + 1]))
            self.clocks = deltas.total(self.clocks, header.counts)
            self._known[header.origin] += sum(header.counts)
            self._news = True


class _Copies:
    """Compares deltas as they arrived with their fingerprints. A device adds a delta and its fingerprint in one pass, and is
    asked once. Fingerprints are added up by origin and slot: in one sum of an origin, a bit that is set in one delta and
    cleared in the next would cancel out."""

    def __init__(self, replica: FreeReplica, traffic: Traffic, workers: int) -> None:
        self._replica = replica
        self._traffic = traffic
        self._window = traffic.memory.window
        self._told = [0] * (workers * self._window)
        self._found = replica.replica.staging.integers(len(self._told))

    def apply(self, header: Header, delta: torch.Tensor) -> None:
        at = header.origin * self._window + header.number % self._window
        self._told[at] = wrap(self._told[at] + header.fingerprint)
        self._replica.compare_other(delta, header.fingerprint, self._found[at : at + 1])

    def damaged(self, waiting: Iterable[Delta]) -> dict[int, int]:
        """The peers from which deltas have arrived otherwise than they were sent, by the origin of these. waiting: what is
        not applied yet. It may have been handed on, and whoever applied it would name this worker's own copy."""
        for delta in waiting:
            self.apply(delta.header, delta.slices[0])
        found = self._found.tolist()
        origins = {at // self._window for at, told in enumerate(self._told) if told != found[at]}
        return {origin: self._traffic.before(origin) for origin in sorted(origins)}
