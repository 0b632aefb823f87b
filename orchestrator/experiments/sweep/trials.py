"""The trials of a sweep, side by side on one Ray: each an ordinary run, launched or gone on with in a thread of its own.

They are threads, so that a single run stays as it is: one process takes the signals and all runs see them, and each run holds
its own lease. If the process is killed, its Ray and all members end with it, as those of a single run do.

A trial that fails counts as failed, and the search goes on: its code raised or had a kernel fail, its loss is no number, its
settings are refused, or its workers died or hung. So does one whose GPU has no memory left. A failure that is no fault of a
trial (Ray, a disk, a broken GPU, an interrupt, code that changed meanwhile) ends the sweep, which can be resumed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.cluster.sessions import RaySession
from orchestrator.common import card_faults
from orchestrator.config.settings import Settings
from orchestrator.driver.folders import RunFolder
from orchestrator.driver.launch.launch import launch
from orchestrator.driver.launch.resume import resume
from orchestrator.driver.preflight.checks import Provenance
from orchestrator.driver.report.outcome import RunOutcome
from orchestrator.driver.run.job import Beside
from orchestrator.driver.terminal.signals import PendingSignal
from orchestrator.errors import (
    ConfigurationError,
    Inconsistent,
    Interrupted,
    NonFinite,
    OrchestratorError,
    OutOfDeviceMemory,
    PipelineRaised,
    RunFailed,
    Stalled,
    UsageError,
    WorkerLost,
    few,
)
from orchestrator.experiments.search.described import Sweep
from orchestrator.experiments.search.outlook import Ended, Outlook, TrialRung, look
from orchestrator.experiments.sweep.record import GONE, SweepRecord
from orchestrator.experiments.sweep.trial_board import TrialBoard, TrialDisplay
from orchestrator.provenance.code.changes import differing
from orchestrator.provenance.code.worktree import WorkTree
from orchestrator.provenance.data.hashing import Scan
from orchestrator.provenance.tracking import PARENT, Past
from orchestrator.records import phases

_SHOWN = 3  # names in a sentence
_OF_THE_TRIAL = (PipelineRaised, NonFinite, Inconsistent, WorkerLost, Stalled, ConfigurationError, OutOfDeviceMemory)


class WrongMetricError(RunFailed):
    """The objective names a metric that runs do not have, so no trial can have a value."""

    recurs = True


@dataclass
class Trials:
    """Runs what is due until nothing is."""

    sweep: Sweep  # what is asked for
    record: SweepRecord  # of the sweep, which tells what was done before
    ray: RaySession  # serves all trials
    board: TrialBoard  # shows the progress
    pending_signal: PendingSignal  # tells all of a request to end
    folder: Path  # the `.orchestrator` that runs are recorded in
    overrides: list[str] = field(default_factory=list)  # of the execution, where a sweep goes on
    tree: str | None = None  # of the code that all trials have
    trusted: bool = False  # as `launch` takes it
    _code: WorkTree | None = None  # as the first trial of this process had it
    _scans: dict[str, Scan] = field(default_factory=dict)  # of the inputs that trials have, by path
    _lock: threading.Lock = field(default_factory=threading.Lock)  # of these three, which trials find at the same time

    def complete(self) -> Outlook:
        """Raises Interrupted, and what ends a sweep."""
        points = {trial.number: trial.point for batch in self.record.known.asked for trial in batch}
        for place, ended in sorted(self.record.known.ended.items()):
            self.board.knows(place, ended.value, points[place[0]], last=place[1] == self.sweep.course.last)
        with ThreadPoolExecutor(self.sweep.parallel, thread_name_prefix="trial") as pool:
            while True:
                outlook = self.outlook()
                self._note(outlook)
                if not outlook.due:
                    return outlook
                points |= {trial.number: trial.point for trial in outlook.trials}
                runs = [pool.submit(self._run, place, points[place[0]]) for place in outlook.due]
                self._await(runs)

    def outlook(self) -> Outlook:
        known = self.record.known
        return look(self.sweep.course, known.ended, known.asked)

    def _note(self, outlook: Outlook) -> None:
        """Write down what was decided, before anything follows from it."""
        known = self.record.known
        for number in range(len(known.asked), len(outlook.batches)):
            self.record.asked(number, outlook.batches[number])
        for cut in outlook.cuts[len(known.cuts) :]:
            self.record.cut(cut)
            dropped = len(outlook.batches[cut.batch]) - len(cut.kept)
            steps = self.sweep.course.steps_of(cut.rung)
            self.board.say(f"batch {cut.batch} after {steps} steps: {len(cut.kept)} go on, {dropped} do not")
        self.board.counts(len(outlook.results))

    def _await(self, runs: list[Future[None]]) -> None:
        """Until all have ended. After an error nothing else is begun. Raises the first."""
        first: BaseException | None = None
        for run in as_completed(runs):
            error = None if run.cancelled() else run.exception()
            if error is not None and (first is None or isinstance(first, Interrupted)):
                first = error
                for other in runs:
                    other.cancel()
        if first is not None:
            raise first

    def _run(self, place: TrialRung, point: Mapping[str, Any]) -> None:
        self.pending_signal.check()
        self.board.begins(place, point, self.sweep.course.steps_of(place[1]))
        try:
            with phases.of_a_launch():
                ended = self._come_to_an_end(place, point)
        except BaseException:
            self.board.leaves(place)
            raise
        if ended.value is None and self.sweep.ensemble is not None:  # it needs every member: none counts as failed
            self.board.leaves(place)
            raise RunFailed(
                f"member {place[0]}, run {ended.run_id}, failed: {ended.why}",
                f"go on with it where that has another cause than its code: resume={self.record.sweep_id}",
                code="ensemble.member-failed",
            )
        self.record.ended(place, ended)
        self.board.ends(place, ended.value, ended.why, last=place[1] == self.sweep.course.last)

    def _come_to_an_end(self, place: TrialRung, point: Mapping[str, Any]) -> Ended:
        try:
            earlier = self._earlier(place)
            if (
                earlier is not None and earlier.status == "FINISHED"
            ):  # before the driver could write that to the journal
                return self._valued(earlier.run_id, earlier.metrics, earlier.digest)
            if earlier is not None and self._can_go_on(earlier.run_id):
                uri = self.sweep.settings.tracking.uri
                # The sweep itself was trusted when it was resumed.
                run_id, outcome = resume(earlier.run_id, self.overrides, uri, self._beside(place), trusted=True)
            else:
                settings = self._settings(place, point)
                origins = dict.fromkeys(
                    point, f"{self.sweep.noun} {place[0]} of {self.sweep.kind} {self.record.sweep_id}"
                )
                beside = self._beside(place)
                run_id, outcome = launch(settings, origins, beside=beside, trusted=self.trusted)
        except _OF_THE_TRIAL as error:
            return Ended(self.record.known.begun.get(place), None, None, f"{error.kind}: {error.message}")
        return self._judged(run_id, outcome)

    def _judged(self, run_id: str, outcome: RunOutcome) -> Ended:
        """Raises what ends a sweep."""
        if outcome.error is not None:
            fault = card_faults.BY_CODE.get(outcome.error.code)
            if not isinstance(outcome.error, _OF_THE_TRIAL) and not (fault is not None and fault.by_code):
                raise outcome.error
            return Ended(run_id, None, None, f"{outcome.error.kind}: {outcome.error.message}")
        return self._valued(run_id, {**outcome.metrics, "train/loss": outcome.loss}, outcome.digest)

    def _valued(self, run_id: str, metrics: Mapping[str, float | None], digest: str | None) -> Ended:
        """Raises WrongMetricError."""
        metric = self.sweep.metric
        value = metrics.get(metric)
        if value is None:
            if self.sweep.ensemble is not None:
                raise WrongMetricError(
                    "an ensemble is judged by validation samples, and datasets() of the pipeline returns none",
                    "return (train, validation) there",
                    code="ensemble.judged-by-validation",
                )
            there = ", ".join(sorted(name for name, found in metrics.items() if found is not None))
            raise WrongMetricError(
                f"objective.metric: runs have no {metric} at their end; there are {there}",
                "launch the sweep again with one of these",
                code="sweep.no-such-metric",
            )
        if not math.isfinite(value):
            return Ended(run_id, None, digest, f"{metric} is {value}")
        return Ended(run_id, value, digest)

    def _earlier(self, place: TrialRung) -> Past | None:
        """The run that has begun there; None where none has, or MLflow has lost it. Then the trial is begun anew."""
        run_id = self.record.known.begun.get(place)
        if run_id is None:
            return None
        try:
            return self.record.store.find(run_id)
        except UsageError as error:
            if error.code not in GONE:
                raise
            return None

    def _can_go_on(self, run_id: str) -> bool:
        """Whether its record was written before the driver died; otherwise the trial is begun anew."""
        files = RunFolder(self.folder, run_id)
        return all(file.exists() for file in (files.settings, files.data, files.trace))

    def _settings(self, place: TrialRung, point: Mapping[str, Any]) -> Settings:
        """Raises ConfigurationError."""
        number, rung = place
        settings = self.sweep.settings_of(dict(point), rung)
        suffix = f"-{rung}" if self.sweep.course.last else ""
        name = f"{settings.run.name or self.sweep.kind}-{number:03d}{suffix}"
        return replace(settings, run=replace(settings.run, name=name))

    def _beside(self, place: TrialRung) -> Beside:
        sweep = self.sweep
        tags = {PARENT: self.record.sweep_id, sweep.kind: self.record.sweep_id, sweep.noun: str(place[0])}
        if self.sweep.course.last:
            tags["rung"] = str(place[1])
        return Beside(
            self.folder,
            TrialDisplay(self.board, place),
            self.pending_signal,
            self.ray,
            tags,
            self._scans,
            self._check_project,
            lambda run_id: self.record.begun(place, run_id),
        )

    def _check_project(self, provenance: Provenance) -> None:
        """All trials of a sweep have the same code, and the same data; a trial may write further files beside these. Raises
        RunFailed."""
        tree = None if provenance.work is None else provenance.work.tree
        with self._lock:
            self.tree, self._code = self.tree or tree, self._code or provenance.work
            if tree != self.tree:
                now, then = ({} if each is None else each.entries for each in (provenance.work, self._code))
                files = differing(then, now)
                named = f" ({few(files, _SHOWN)})" if files else ""
                raise RunFailed(
                    f"the code of the project has changed since the {self.sweep.kind} began{named}",
                    f"it goes on with the code it began with: python -m orchestrator resume={self.record.sweep_id}; what "
                    "trials themselves write belongs into .gitignore before they begin",
                    code="sweep.code-changed",
                )
            scans = provenance.scans
            changed = [path for path in scans if not scans[path].keeps(self._scans.setdefault(path, scans[path]))]
        if changed:
            raise RunFailed(
                f"{few(changed, _SHOWN)} changed since the {self.sweep.kind} began",
                f"it goes on with the data it began with: python -m orchestrator resume={self.record.sweep_id}",
                code="sweep.data-changed",
            )


def failed_all(outlook: Outlook, ended: Mapping[TrialRung, Ended]) -> OrchestratorError | None:
    """The error of a sweep none of whose trials came to anything."""
    if any(result.value is not None for result in outlook.results):
        return None
    why = next((each.why for each in ended.values() if each.why), "there is none")
    return RunFailed(
        f"every trial failed; the first of them: {why}",
        "mend that, and launch the sweep again",
        code="sweep.all-failed",
    )
