"""A worker's part in one generation, apart from its steps: arriving with the right state, evaluating, telling, saving.

What it does not do: decide when. The loop says when, alike at every member.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from orchestrator.checkpoints.state import TrainingState
from orchestrator.engine.compute import evaluation
from orchestrator.engine.compute import snapshot as states
from orchestrator.engine.compute.replica import Replica
from orchestrator.engine.compute.workload import Workload
from orchestrator.engine.exchange import state_transfer
from orchestrator.engine.execution.loop import Loop
from orchestrator.engine.execution.run_state import RunState
from orchestrator.engine.member.cancellation import CancellableTransport
from orchestrator.engine.member.generation import Entry, Generation, Position, ProcessServices
from orchestrator.engine.server import deadline_s
from orchestrator.numerics.digests import model_digest, tensor_digests
from orchestrator.records import trace
from orchestrator.settings import Settings


@dataclass
class WorkerState:
    """What a worker keeps between generations. has_state: of the run; a fresh worker has only the initial one."""

    settings: Settings
    services: ProcessServices
    workload: Workload
    replica: Replica
    optimizer: torch.optim.Optimizer
    loop: Loop
    has_state: bool = False

    @property
    def position(self) -> Position | None:
        return self.loop.run_state.position if self.has_state else None

    def capture(self, run_state: RunState) -> TrainingState:
        """Views of what is in use."""
        return states.capture(self.workload.model, self.optimizer, run_state.as_dict())

    def take_over(self, state: TrainingState) -> None:
        """Be as far as whoever this state is from. Raises CalledOff; or Inconsistent, where it does not fit; and has changed
        nothing then."""
        self.services.await_copied()
        values = states.restore(state, self.workload.model, self.optimizer)
        self.replica.begin_step()
        self.replica.begin_shard()
        self.loop.run_state = self.loop.run_state.resumed(values)
        self.has_state = True


class WorkerHooks:
    """Implements `engine.loop.Hooks`."""

    def __init__(self, kept: WorkerState, generation: Generation, rank: int) -> None:
        self._kept = kept
        self._services = kept.services
        self._generation = generation
        self._rank = rank

    def arrive(self, transport: CancellableTransport) -> None:
        """Load, take and give what this generation says."""
        generation, restore = self._generation, self._generation.restore
        if restore is not None and restore[0] == self._rank:
            self._services.heartbeat.beat("prepare")
            self._kept.take_over(self._services.load(restore[1]))
        timeout_s = deadline_s(self._kept.settings)
        for donor in generation.donors_of(self._rank):
            state, entries = state_transfer.take(transport, generation.number, donor, timeout_s)
            self._kept.take_over(state)
            for entry in entries:
                self._services.emit(entry)
        self._give(transport, timeout_s)
        self._kept.has_state = True
        transport.place = "exchange"

    def running(self) -> None:
        number, step = self._generation.number, self._kept.loop.run_state.steps - 1
        self._services.emit({"event": "generation_running", "generation": number, "step": step})

    def evaluate(self, step: int) -> evaluation.Results:
        kept = self._kept
        shards, total = self._generation.shards[self._rank], kept.settings.data.shards
        return evaluation.compute(kept.workload, kept.replica, shards, total, step, self._evaluating(step))

    def tell(self, line: trace.Line, metrics: Mapping[str, float] | None, *, last: bool) -> None:
        step, due, model = line["step"], self._kept.settings.trace, self._kept.workload.model
        whole = model_digest(model) if last or _is_due(step, due.digest_every) else None
        single = tensor_digests(model) if _is_due(step, due.tensors_every) else None
        self._services.emit({"trace": trace.with_digests(line, whole, single)})
        if metrics is not None:
            self._services.emit({"event": "evaluated", "step": step, "metrics": dict(metrics)})

    def save(self, run_state: RunState) -> None:
        writers = self._generation.writers
        self._services.heartbeat.beat("checkpoint", run_state.steps)
        if self._rank not in writers:
            return
        self.saved()
        since = time.monotonic()
        self._services.writer.begin(
            self._kept.capture(run_state),
            step=run_state.steps,
            generation=self._generation.number,
            part=writers.index(self._rank),
            parts=len(writers),
            since=since,
        )

    def saved(self) -> None:
        self._services.await_written()

    def _give(self, transport: CancellableTransport, timeout_s: float) -> None:
        recipients = self._generation.recipients_of(self._rank)
        workers = [recipient for recipient in recipients if recipient < self._generation.schedule.workers]
        servers = [recipient for recipient in recipients if recipient not in workers]
        run_state, number = self._kept.loop.run_state, self._generation.number
        if servers:
            state_transfer.give(transport, number, servers, TrainingState(run_state.as_dict(), {}), [], timeout_s)
        if workers:
            entries = [entry for entry in self._services.unacknowledged() if _is_of_the_run(entry)]
            state_transfer.give(transport, number, workers, self._kept.capture(run_state), entries, timeout_s)

    def _evaluating(self, step: int) -> evaluation.Beat:
        return lambda: self._services.heartbeat.beat("evaluate", step)


def _is_due(step: int, every: int) -> bool:
    return every > 0 and (step + 1) % every == 0


def _is_of_the_run(entry: Entry) -> bool:
    """What every worker would tell; not what this one printed."""
    return "trace" in entry or entry.get("event") == "evaluated"
