"""The steps of a run, its evaluations, checkpoints and its end, the same at every member (rule A6).

    until the run ends or a halt was voted:
        evaluate, where that is due          also as the first thing of a generation, when the one before was given up there
        report the step                      trace line, metrics
        take a checkpoint, where one is due  unless somebody's writer is busy: then at the next boundary (one that stays: here)
        step                                 vote, sum, apply

An audit repeats segments of a run: where one ends, all members save, and begin the next one with the checkpoint before it.

Workers and servers run the same loop. Whether to evaluate, to lower the learning rate, to save or to stop follows from what
all members have agreed on in the step itself, so it needs no further message. Between generations the state of a worker is its
run state, its replica and its optimizer; a loop of a worker that is left by an exception is entered again where it was left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import torch

from orchestrator.comm.collectives import END, Exchange
from orchestrator.common import injection
from orchestrator.config.plan import Plan, Segments
from orchestrator.controller.events import FallbackPair
from orchestrator.records import trace
from orchestrator.worker.between_steps import evaluation
from orchestrator.worker.between_steps.run_state import RunState
from orchestrator.worker.between_steps.timing import Timing
from orchestrator.worker.member.generation import Generation
from orchestrator.worker.member.heartbeat import Halt, Heartbeat
from orchestrator.worker.step.executor import Executor, StepOutcome
from orchestrator.worker.step_report import Requests

Halted = Literal["finished", "regroup", "stop"]


class Hooks(Protocol):
    """The parts of a generation, beside the step itself, that a worker and a server do differently."""

    def running(self) -> None:
        """The first step of this generation is committed."""

    def evaluate(self, step: int) -> evaluation.Results:
        """This member's part of the evaluation after a step."""

    def publish(
        self,
        lines: Sequence[trace.Line],
        barrier: Mapping[str, Any] | None,
        metrics: Mapping[str, float] | None,
        *,
        digest: bool,
    ) -> None:
        """Report the last steps: all that belongs to them is done. barrier: the record of the rest that ended them, if one did;
        digest: of all parameters, also where none is due."""

    def save(self, run_state: RunState) -> None:
        """Copy this member's part of a checkpoint and have it written, after the one that is being written."""

    def saved(self) -> None:
        """Wait until that is written."""

    def begin_segment(self, segments: Segments, first: int) -> Mapping[str, Any]:
        """Have the state in which a segment that an audit repeats begins; returns the run state that was kept with it."""


class Loop:
    """The sequence of a run's steps at one member; a worker's loop outlives generations. run_state: how far it is."""

    def __init__(self, plan: Plan, run_manifest: Mapping[str, Any], timing: Timing, heartbeat: Heartbeat) -> None:
        self._steps: int = run_manifest["steps"]
        self._barriers = len(plan.replay) or None
        self._segments, self._first_step = plan.segments, plan.run.first_step
        self._batches: int = run_manifest["evaluation_batches"]
        self._timing = timing
        self._heartbeat = heartbeat
        self._times = heartbeat.times
        self.run_state = RunState.start(plan, len(run_manifest["layout"]["slots"]))

    @property
    def ended(self) -> bool:
        """Whether no step and no evaluation is left to do."""
        return self._ended(self.run_state)

    def _ended(self, run_state: RunState) -> bool:
        replayed = run_state.free is not None and run_state.free.barriers == self._barriers
        is_last = run_state.steps == self._steps or replayed or run_state.stopped_early
        is_last = is_last or (self._segments is not None and self._segments.over(run_state.steps))
        return is_last and not run_state.evaluation_due

    def use_fallbacks(self, fallbacks: tuple[FallbackPair, ...]) -> None:
        """Note, of replicas that run free, that these lost shards have gone on since the last sync barrier with what their
        fallbacks keep."""
        self.run_state = self.run_state.with_fallbacks(fallbacks)

    def run(self, executor: Executor, exchange: Exchange, hooks: Hooks, generation: Generation) -> Halted:
        """Run steps until the end of the run or a halt. generation: the present one."""
        saving = bool(generation.writers)
        if generation.restore is None:
            self.run_state = self.run_state.untold()
        agreed = Requests(busy=True)  # at the first boundary nobody has asked the writers
        is_running, saved = False, -1
        self._times.begins_at(self.run_state.steps)
        while True:
            self._complete(exchange, hooks)
            if self._segments is not None:
                saved = self._go_to_segment(self._segments, hooks, saving=saving) or saved
            if self.ended:
                return self._finish(exchange, hooks, saving=saving and saved != self.run_state.steps)
            if agreed.halt == Halt.STOP:
                return self._stop(hooks, saving=saving and saved != self.run_state.steps)
            if agreed.halt == Halt.REGROUP:
                return "regroup"
            if saving and (self.run_state.save_here or (self.run_state.save_due and not agreed.busy)):
                self._save(hooks)
                saved = self.run_state.steps
            outcome = executor.advance(self.run_state)
            self._commit(outcome)
            agreed = outcome.requests
            if not is_running:
                hooks.running()
            is_running = True

    def _commit(self, outcome: StepOutcome) -> None:
        before, steps, lines = self.run_state.steps, outcome.steps, outcome.lines
        injection.at("commit", steps, self.run_state)
        self._times.stepped(steps)
        by_cadence = self._timing.evaluation.due(before, steps) or outcome.requests.evaluate
        evaluation_due = self._batches > 0 and (by_cadence or steps == self._steps)
        save_due = self._timing.checkpoint.due(before, steps) or outcome.requests.save
        self.run_state = self.run_state.committed(
            outcome.grid,
            steps,
            lines,
            outcome.free,
            evaluation_due=evaluation_due,
            save_due=save_due,
            archived=self._timing.archive.due(before, steps),
            second_vote=outcome.second_vote,
        )
        if evaluation_due:
            self._timing.evaluation.restart()
        if outcome.requests.save:
            self._timing.checkpoint.restart()
            self._heartbeat.heard("save")  # from now on it is due, wherever this member goes

    def _complete(self, exchange: Exchange, hooks: Hooks) -> None:
        """Finish the last step: evaluate where that is due, then report. In a model in stages all members take part in a
        digest, so reporting may be interrupted too. Then the evaluation is repeated with it, so that all members are equally
        far."""
        run_state, metrics = self.run_state, None
        if run_state.evaluation_due:
            step = run_state.steps - 1
            self._times.hold("evaluate")
            results = hooks.evaluate(step)
            metrics = evaluation.combine(exchange, step, self._batches, results, run_state.monitored())
            run_state = run_state.evaluated(metrics)
            self._times.release()
        barrier = None if run_state.free is None else run_state.free.unpublished
        if run_state.unpublished or barrier is not None:
            self._times.hold("report")
            segments = self._segments
            stays = run_state.save_here or self._ended(run_state)
            stays = stays or (segments is not None and segments.end_at(run_state.steps))
            hooks.publish(run_state.unpublished, barrier, metrics, digest=stays)
            self._times.release()
            run_state = run_state.published()
        self.run_state = run_state

    def _go_to_segment(self, segments: Segments, hooks: Hooks, *, saving: bool) -> int | None:
        """Save where a segment ends, and go to where the next one begins, if that is due; the steps that were saved. Decided by
        the number of steps alone, so it is the same at all members, also after a loss."""
        steps = self.run_state.steps
        saved = steps if saving and segments.end_at(steps) else None
        if saved is not None:
            self._save(hooks)
        first = segments.due(steps)
        if first is not None and first > self._first_step:
            self.run_state = self.run_state.resumed(hooks.begin_segment(segments, first))
            self._times.begins_at(first)
        return saved

    def _save(self, hooks: Hooks) -> None:
        self._times.hold("checkpoint")
        hooks.save(self.run_state.saved())
        self._times.release()
        self.run_state = self.run_state.saved()
        self._timing.checkpoint.restart()

    def _stop(self, hooks: Hooks, *, saving: bool) -> Halted:
        """saving: this step has no checkpoint of this generation yet; replicas that run free may rest twice in a step."""
        if saving:
            self._save(hooks)
        hooks.saved()
        self._heartbeat.heard("stop")
        return "stop"

    def _finish(self, exchange: Exchange, hooks: Hooks, *, saving: bool) -> Halted:
        """End the run. No member leaves before all have committed the last step (rule D1), and written their parts of its
        checkpoint: without one who was to write, others do."""
        if saving:
            self._save(hooks)
        hooks.saved()
        exchange.maximum(self.run_state.steps, 0, END, torch.zeros(1, dtype=torch.int64))
        return "finished"
