"""The steps of a run, its evaluations, checkpoints and its end, the same at every member (rule A6).

    until the run ends or a halt was voted:
        evaluate, where that is due          also as the first thing of a generation, when the one before was given up there
        tell the step                        trace line, metrics
        take a checkpoint, where one is due  unless somebody's writer is busy: then at the next boundary
        step                                 vote, sum, apply

Workers and servers walk through one loop. Whether to evaluate, to lower the learning rate, to save or to stop follows from what
all members have agreed on in the step itself, so nobody has to be told. Between generations the state of a worker is its
run state, its replica and its optimizer; a loop of a worker that is left by an exception is entered again where it was left.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import torch

from orchestrator.engine.compute import evaluation
from orchestrator.engine.exchange.collectives import END, Exchange
from orchestrator.engine.exchange.step_report import Requests
from orchestrator.engine.execution.lockstep import Lockstep, Outcome
from orchestrator.engine.execution.run_state import RunState
from orchestrator.engine.member.heartbeat import Halt, Heartbeat
from orchestrator.records import trace
from orchestrator.settings import Every, Settings

Halted = Literal["finished", "regroup", "stop"]


class Hooks(Protocol):
    """What differs between a worker and a server in one generation, beside the step itself."""

    def running(self) -> None:
        """The first step of this generation is committed."""

    def evaluate(self, step: int) -> evaluation.Results:
        """This member's part of the evaluation after a step."""

    def tell(self, line: trace.Line, metrics: Mapping[str, float] | None, *, last: bool) -> None:
        """A step is done with all that belongs to it."""

    def save(self, run_state: RunState) -> None:
        """Copy this member's part of a checkpoint and have it written, after the one that is being written."""

    def saved(self) -> None:
        """Wait until that is written."""


class Watch:
    """When something is due that comes every so many steps or seconds. By steps it is a function of the step; by seconds one
    member's watch is put to the vote."""

    def __init__(self, every: Every | None) -> None:
        self._steps = every.steps if every is not None else None
        self._seconds = every.seconds if every is not None else None
        self._since = time.monotonic()

    def asks(self) -> bool:
        return self._seconds is not None and time.monotonic() - self._since >= self._seconds

    def due(self, steps: int) -> bool:
        """After so many committed steps."""
        return self._steps is not None and steps % self._steps == 0

    def restart(self) -> None:
        self._since = time.monotonic()


class Loop:
    """One member's way through the run; a worker's outlives generations. run_state: where it is."""

    def __init__(self, settings: Settings, run_manifest: Mapping[str, Any], heartbeat: Heartbeat) -> None:
        self._steps: int = run_manifest["steps"]
        self._batches: int = run_manifest["evaluation_batches"]
        self._heartbeat = heartbeat
        self._evaluations = Watch(settings.evaluation.every)
        self._checkpoints = Watch(settings.checkpoint.every)
        self.run_state = RunState.start(settings, len(run_manifest["layout"]["slots"]))

    @property
    def ended(self) -> bool:
        """No step is to come; nor is an evaluation."""
        run_state = self.run_state
        return not run_state.evaluation_due and (run_state.steps == self._steps or run_state.stopped_early)

    def requests(self, *, keeps_time: bool, busy: bool) -> Requests:
        """A worker's, for its step report. keeps_time: its clock is the one that counts."""
        return Requests(
            evaluate=keeps_time and self._evaluations.asks(),
            halt=self._heartbeat.halt(),
            save=self._heartbeat.wants_save or (keeps_time and self._checkpoints.asks()),
            busy=busy,
        )

    def run(self, lockstep: Lockstep, exchange: Exchange, hooks: Hooks, *, saving: bool) -> Halted:
        """Until the end of the run or a halt. saving: this generation has writers of checkpoints."""
        agreed = Requests(busy=True)  # at the first boundary nobody has asked the writers
        is_running = False
        while True:
            self._settle(exchange, hooks)
            if self.ended:
                return self._finish(exchange, hooks, saving=saving)
            if agreed.halt == Halt.STOP:
                return self._stop(hooks, saving=saving)
            if agreed.halt == Halt.REGROUP:
                return "regroup"
            if saving and self.run_state.save_due and not agreed.busy:
                self._save(hooks)
            outcome = lockstep.step(self.run_state.steps)
            self._commit(outcome, lockstep)
            agreed = outcome.requests
            if not is_running:
                hooks.running()
            is_running = True

    def _commit(self, outcome: Outcome, lockstep: Lockstep) -> None:
        steps = outcome.step + 1
        by_clock = self._evaluations.due(steps) or outcome.requests.evaluate
        evaluation_due = self._batches > 0 and (by_clock or steps == self._steps)
        save_due = self._checkpoints.due(steps) or outcome.requests.save
        line = trace.line(outcome.step, outcome.loss, outcome.gradient)
        self.run_state = self.run_state.committed(lockstep.grid, line, evaluation_due=evaluation_due, save_due=save_due)
        if evaluation_due:
            self._evaluations.restart()
        if outcome.requests.save:
            self._checkpoints.restart()
            self._heartbeat.heard("save")  # from now on it is due, wherever this member goes

    def _settle(self, exchange: Exchange, hooks: Hooks) -> None:
        """All that belongs to the last step: its evaluation, then telling it."""
        metrics = None
        if self.run_state.evaluation_due:
            step = self.run_state.steps - 1
            results = hooks.evaluate(step)
            metrics = evaluation.combine(exchange, step, self._batches, results, self.run_state.watched())
            self.run_state = self.run_state.evaluated(metrics)
        if self.run_state.pending_line is not None:
            hooks.tell(self.run_state.pending_line, metrics, last=self.ended)
            self.run_state = self.run_state.told()

    def _save(self, hooks: Hooks) -> None:
        hooks.save(self.run_state.saved())
        self.run_state = self.run_state.saved()
        self._checkpoints.restart()

    def _stop(self, hooks: Hooks, *, saving: bool) -> Halted:
        if saving:
            self._save(hooks)
            hooks.saved()
        self._heartbeat.heard("stop")
        return "stop"

    def _finish(self, exchange: Exchange, hooks: Hooks, *, saving: bool) -> Halted:
        """Nobody leaves, and nothing is final, before all have committed the last step (rule D1)."""
        exchange.maximum(self.run_state.steps, 0, END, torch.zeros(1, dtype=torch.int64))
        if saving:
            self._save(hooks)
            hooks.saved()
        return "finished"
