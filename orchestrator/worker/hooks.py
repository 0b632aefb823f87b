"""A worker's part in one generation beside its steps: taking over or giving state, evaluating, reporting, saving.

The loop decides when each is done, equally at every member.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.checkpoint.state import TrainingState
from orchestrator.comm.collectives import VOTES
from orchestrator.common import injection
from orchestrator.config.plan import Plan, Segments
from orchestrator.errors import Inconsistent
from orchestrator.records import trace
from orchestrator.records.progress import Progress
from orchestrator.worker.between_steps import evaluation, state_transfer
from orchestrator.worker.between_steps.boundary import Boundary
from orchestrator.worker.between_steps.callbacks import Callbacks
from orchestrator.worker.between_steps.late_digests import LateDigests
from orchestrator.worker.between_steps.replica_state import ReplicaState
from orchestrator.worker.between_steps.run_state import RunState
from orchestrator.worker.between_steps.segments import kept_state
from orchestrator.worker.between_steps.timing import Timing
from orchestrator.worker.loop import Loop
from orchestrator.worker.member.cancellation import CancellableTransport
from orchestrator.worker.member.generation import INITIAL, Entry, Generation, ProcessServices
from orchestrator.worker.model import snapshot
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.pipeline_parallel.messages import WAITS
from orchestrator.worker.pipeline_parallel.stage_state import StageState


@dataclass
class WorkerState:
    """The objects that a worker keeps between generations."""

    plan: Plan  # of the run
    services: ProcessServices  # of the member's process
    model_state: ReplicaState | StageState  # what the worker has at a boundary
    boundary: Boundary  # evaluates, saves and publishes between steps
    loop: Loop  # goes from step to step
    timing: Timing  # when an evaluation or a checkpoint is due
    callbacks: Callbacks | None  # of the pipeline; None of a pipeline without
    digests: LateDigests  # tells the trace, also where digests of a model on a GPU are made beside the next steps
    has_state: bool = False  # of the run; a fresh worker has only the initial one
    # makes the initial state anew, where a loss may send the run back to it; None where none may
    initial: Callable[[], TrainingState] | None = None

    @property
    def progress(self) -> Progress | None:
        return self.loop.run_state.progress if self.has_state else None

    def keep_initial(self) -> None:
        self.initial = self.model_state.initial(self.loop.run_state.as_dict())

    def go_back(self) -> None:
        """To the state in which the run began."""
        assert self.initial is not None
        self.services.await_copied()
        self.take_over(self.initial())

    def take_over(self, state: TrainingState) -> None:
        """Replace the state by this one. Raises CalledOff; or Inconsistent, where it does not fit; and has changed
        nothing then."""
        self.services.await_copied()
        run_state = self.loop.run_state
        reached = self.loop.run_state.resumed(snapshot.run_state_of(state))
        begins = self.plan.run.begin is not None and reached.steps == self.plan.run.first_step
        self.model_state.restore(state, (run_state.advances, reached.advances))
        if begins:  # a state of another run, which may have had other settings
            self.model_state.renew_options()
            reached = reached.begun()
        self.loop.run_state = reached
        self.has_state = True

    def follow(self, state: TrainingState) -> None:
        """Be as far as whoever this state of the run is from, by the sum that is held. Raises as `take_over`."""
        assert isinstance(self.model_state, StageState)
        run_state = self.loop.run_state
        reached = run_state.resumed(snapshot.run_state_of(state))
        self.model_state.follow(run_state, reached.second_vote)
        self.loop.run_state = reached


class WorkerHooks:
    """A worker's part in one generation beside its steps; implements `worker.loop.Hooks`."""

    def __init__(self, state: WorkerState, workload: PipelineAdapter, generation: Generation, rank: int) -> None:
        self._state = state
        self._services = state.services
        self._generation = generation
        self._rank = rank
        # A peer may wait for a store that long, which is nobody's fault.
        self.deadline_s = state.plan.cluster.timeouts.deadline_s + workload.samples.may_wait_s

    def arrive(self, transport: CancellableTransport) -> None:
        """Load, take and give state, as this generation says."""
        generation, restore = self._generation, self._generation.restore
        if restore is not None and self._rank in (generation.begin.restorers or restore[:1]):
            self._services.heartbeat.beat("prepare")
            if restore[1] == INITIAL:
                self._state.go_back()
            else:
                self._state.take_over(self._services.load(restore[1], self._state.model_state.wants))
        self._tell_run_states(transport)
        for donor in generation.donors_of(self._rank):
            state, entries = state_transfer.take(transport, generation.number, donor, self.deadline_s)
            self._state.take_over(state)
            for entry in entries:
                self._services.emit(entry)
        self._give(transport)
        self._move_rows(transport)
        self._state.loop.use_fallbacks(self._generation.begin.all_fallbacks)
        self._state.has_state = True
        transport.activity, transport.waits = "exchange", {**VOTES, **WAITS}

    def running(self) -> None:
        steps = self._state.loop.run_state.steps
        injection.at("running", steps, (self._generation, self._rank))
        number, step = self._generation.number, steps - 1
        self._services.emit({"event": "generation_running", "generation": number, "step": step})
        writers = self._generation.writers
        if self._rank in writers and self._state.plan.run.compute.device == "cuda":
            state = self._state.model_state.to_write({}, self._state.boundary.part(writers))
            self._services.writer.reserve(state, part=writers.index(self._rank), parts=len(writers))
        digested = self._state.boundary.digested() if self._state.plan.cadence.digest_every else None
        if digested is not None:
            self._state.digests.reserve(digested[0])

    def evaluate(self, step: int) -> evaluation.Results:
        return self._state.boundary.evaluate(self._generation.begin.shards[self._rank], step, self._evaluating(step))

    def publish(
        self,
        lines: Sequence[trace.Line],
        barrier: Mapping[str, Any] | None,
        metrics: Mapping[str, float] | None,
        *,
        digest: bool,
    ) -> None:
        # If a repeated step gives another result, that of the later generation counts.
        again = {} if self._state.plan.repeats else {"generation": self._generation.number}
        emit = self._state.digests.emit
        for line in lines[:-1]:
            emit({"trace": line, **again})
        if lines:
            line, due, boundary = lines[-1], self._state.plan.cadence, self._state.boundary
            is_due = _is_due(line["step"], due.digest_every)
            single = boundary.tensor_digests() if _is_due(line["step"], due.tensors_every) else None

            def tell(whole: str | None) -> Entry:
                return {"trace": trace.with_digests(line, whole, single), **again}

            # At the end nothing is left to do beside it.
            digested = boundary.digested() if is_due and not digest else None
            if digested is None or not self._state.digests.begin(*digested, tell):
                emit(tell(boundary.digest() if digest or is_due else None))
        if barrier is not None:
            emit({"rest": dict(barrier), **again})
        if metrics is not None:
            step = self._state.loop.run_state.steps - 1
            emit({"event": "evaluated", "step": step, "metrics": dict(metrics), **again})
            if self._state.callbacks is not None and self._rank == 0:
                boundary = self._state.boundary
                self._state.callbacks.call(step, metrics, {**boundary.state(), **boundary.unsaved()})
        self._services.tell_times()

    def save(self, run_state: RunState) -> None:
        writers = self._generation.writers
        self._services.heartbeat.beat("checkpoint", run_state.steps)
        self._state.boundary.begin_save(writers)
        if self._rank not in writers:
            return
        self.saved()
        self._state.digests.settle()  # a checkpoint is not there before the trace that leads to it
        since = time.monotonic()
        self._services.writer.begin(
            self._state.model_state.capture_with_rows(run_state.as_dict()),
            step=run_state.steps,
            generation=self._generation.number,
            part=writers.index(self._rank),
            parts=len(writers),
            since=since,
        )
        if run_state.stays:  # so nobody is farther before it is whole, and if this member dies others take it again
            self._state.timing.awaited = self.saved

    def saved(self) -> None:
        self._services.await_written()

    def begin_segment(self, segments: Segments, first: int) -> Mapping[str, Any]:
        self._services.heartbeat.beat("prepare")
        state = kept_state(segments, first, self._wants)
        self._state.take_over(state)
        digest = self._state.boundary.digest()
        if self._rank == 0:
            self._services.emit({"event": "segment_begun", "step": first, "digest": digest})
        return snapshot.run_state_of(state)

    def _wants(self, name: str) -> bool:
        """Whether this worker wants the tensor of that name: of what shards keep, only that of the shards hosted here."""
        return self._state.model_state.wants(name) and snapshot.shard_of(name) in (
            None,
            *self._state.model_state.shards,
        )

    def _give(self, transport: CancellableTransport) -> None:
        generation, run_state = self._generation, self._state.loop.run_state
        recipients = generation.recipients_of(self._rank)
        workers = [recipient for recipient in recipients if recipient < generation.schedule.workers]
        servers = [recipient for recipient in recipients if recipient not in workers]
        if servers:
            run_alone = TrainingState(run_state.as_dict(), {})
            state_transfer.give(transport, generation.number, servers, run_alone, [], self.deadline_s)
        if workers:
            entries = [entry for entry in self._services.unacknowledged() if _is_of_the_run(entry)]
            state = self._state.model_state.capture(run_state.for_transfer())
            state_transfer.give(transport, generation.number, workers, state, entries, self.deadline_s)

    def _tell_run_states(self, transport: CancellableTransport) -> None:
        """For a model in stages: tell what is known of the run to members that have the parameters, but not all of that. A
        member that has only the sum by which they change applies it, with what it is told of the second vote."""
        number, stream = self._generation.number, state_transfer.RUN
        for donor, recipient in self._generation.begin.run_states:
            if donor == self._rank:
                run_alone = snapshot.of_the_run(self._state.loop.run_state.for_transfer())
                entries = [entry for entry in self._services.unacknowledged() if _is_of_the_run(entry)]
                state_transfer.give(transport, number, [recipient], run_alone, entries, self.deadline_s, stream)
            elif recipient == self._rank:
                state, entries = state_transfer.take(transport, number, donor, self.deadline_s, stream)
                applies = recipient in self._generation.begin.applies
                (self._state.follow if applies else self._state.take_over)(state)
                for entry in entries:
                    self._services.emit(entry)

    def _move_rows(self, transport: CancellableTransport) -> None:
        """Hand what shards keep to their new hosts: one pair after the other, in an order that all know, so that no two wait
        for each other."""
        generation, held, deadline_s = self._generation, self._state.model_state, self.deadline_s
        advances = self._state.loop.run_state.advances
        for lost, fallback in generation.begin.fallbacks:
            held.fall_back(lost, fallback)
        for donor, recipient, shards in generation.begin.moves:
            if donor == self._rank:
                rows = TrainingState({"advances": advances}, held.rows_of(shards))
                state_transfer.give(
                    transport, generation.number, [recipient], rows, [], deadline_s, state_transfer.ROWS
                )
            elif recipient == self._rank:
                came, _ = state_transfer.take(transport, generation.number, donor, deadline_s, state_transfer.ROWS)
                if came.values["advances"] != advances:
                    theirs = f"member {donor} handed over what shards keep after {came.values['advances']} advances"
                    raise Inconsistent(
                        f"{theirs}, and {advances} are done",
                        "this is a fault of orchestrator",
                        code="replica.other-advances",
                    )
                held.adopt_rows(came.tensors)

    def _evaluating(self, step: int) -> evaluation.Beat:
        return lambda: self._services.heartbeat.beat("evaluate", step)


def _is_due(step: int, every: int) -> bool:
    return every > 0 and (step + 1) % every == 0


def _is_of_the_run(entry: Entry) -> bool:
    """Whether every worker would report the same entry; not so what this worker printed."""
    return "trace" in entry or "rest" in entry or entry.get("event") == "evaluated"
