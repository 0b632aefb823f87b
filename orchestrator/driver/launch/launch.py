"""`conf=NAME|PATH [key=value ...]`: check, then start, train, record and sum up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from pathlib import Path
from typing import Any

from orchestrator.config.settings import Settings, kept
from orchestrator.driver.folders import RunFolder, project_folder
from orchestrator.driver.launch.rehearsal import rehearse
from orchestrator.driver.launch.repeated import NOTHING, Repeated
from orchestrator.driver.launch.resume import with_weights, without_ray
from orchestrator.driver.preflight import begin, private
from orchestrator.driver.preflight.checks import Provenance
from orchestrator.driver.recording.opening import open_record
from orchestrator.driver.recording.record import Record
from orchestrator.driver.report.outcome import RunOutcome
from orchestrator.driver.run.event_sink import Audience, Callback
from orchestrator.driver.run.job import Beside, Job
from orchestrator.driver.run.startup import beginning_of
from orchestrator.driver.supervision import supervised
from orchestrator.driver.terminal import signals
from orchestrator.driver.terminal.progress import SegmentProgress, for_stream
from orchestrator.errors import ConfigurationError, RunFailed
from orchestrator.provenance.tracking import KIND
from orchestrator.provenance.tracking.asking import refuse_deleted


def launch(
    settings: Settings,
    origins: Mapping[str, str],
    repeated: Repeated = NOTHING,
    beside: Beside | None = None,
    on_event: Callback | None = None,
    tuning: Mapping[str, Any] | None = None,
    typed: Sequence[str] | None = None,
    *,
    trusted: bool = False,
) -> tuple[str, RunOutcome]:
    """The whole story; returns the run's id and what it came to. origins: where the settings were given, by key; repeated: what
    of another run is repeated; beside: what it has in common with other runs of this process; on_event: called with what
    happens, see `api.launch`; tuning: how settings were chosen by a measurement, to be kept in the record; typed: on the
    command line, what counts when the run is gone on with, too; trusted: the state or the weights with which it begins may be
    those of somebody else.

    Raises UsageError and NotRerunnable before anything is started; an error of the run itself is in the outcome.
    """
    project = Path.cwd()
    settings = begin.all_pinned(settings, project, trusted=trusted)
    found = rehearse(settings, project, repeated, {} if beside is None else beside.scans)
    settings, plan, provenance = found.settings, found.plan, found.provenance
    notes = [*provenance.notes, *found.built.notes]
    secret = private.of_launch(settings)
    if secret is not None and secret.new:
        notes.append(
            f"the secret {secret.path} was made: noise and sampling come from it; keep it, and keep it from others: without it "
            "no private run can be repeated or resumed, and with it noise can be taken off"
        )
    if beside is not None:
        beside.check(provenance)
    folder = project_folder(project) if beside is None else beside.folder
    if beside is None:
        refuse_deleted(settings.tracking.uri, folder, settings.run.experiment)
    display = for_stream() if beside is None else beside.display
    display = display if plan.segments is None else SegmentProgress(display, plan.segments.ranges)
    posted = signals.posted() if beside is None else nullcontext(beside.pending_signal)
    with (
        posted as pending_signal,
        supervised(settings, typed, pending_signal, project, can_resume=plan.segments is None) as supervision,
        ThreadPoolExecutor(1, "record") as pool,
    ):
        # MLflow and DVC take as long to import as Ray to start, so they do it side by side.
        kind = {} if plan.segments is None else {KIND: "audit"}
        opening = pool.submit(copy_context().run, _open, settings, folder, provenance, origins, beside, tuning, kind)
        audience = Audience(display, on_event)
        ray = None if beside is None else beside.ray
        job = Job(settings, plan, project, audience, pending_signal, ray, secret, supervision, tuple(notes))
        run_id, outcome = job.complete(opening, beginning_of(plan))
    without_ray(run_id, outcome, plan, supervision)
    if repeated == NOTHING and beside is None:
        again = kept.restored(RunFolder(folder, run_id).settings, settings) if outcome.weights_lost else ()
        return with_weights(run_id, outcome, again, settings.tracking.uri, typed, trusted=trusted)
    return run_id, outcome


def _open(
    settings: Settings,
    folder: Path,
    provenance: Provenance,
    origins: Mapping[str, str],
    beside: Beside | None,
    tuning: Mapping[str, Any] | None,
    kind: Mapping[str, str],
) -> Record:
    if beside is None:
        record = open_record(settings, folder, provenance, origins, kind)
        if tuning is not None:
            record.keep_tuning(tuning)
        return record
    try:
        record = open_record(settings, folder, provenance, origins, beside.tags)
    except ConfigurationError as error:  # what is wrong with the store is no fault of this run's settings
        raise RunFailed(error.message, error.remedy, code=error.code) from error
    beside.opened(record.tracker.run_id)
    return record
