"""`conf=NAME|PATH [key=value ...]`: check, then start, train, record and sum up."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.commands.launch.rehearsal import rehearse
from orchestrator.driver.before_start import begin, initial, private
from orchestrator.driver.before_start.preflight import Provenance
from orchestrator.driver.folders import project_folder
from orchestrator.driver.recording.opening import open_record
from orchestrator.driver.recording.record import Record
from orchestrator.driver.report.outcome import Outcome
from orchestrator.driver.run.event_sink import Audience, Callback
from orchestrator.driver.run.job import Beside, Job, Sharing, beginning_of
from orchestrator.driver.terminal import signals
from orchestrator.driver.terminal.progress import for_stream
from orchestrator.errors import ConfigurationError, RunFailed, UsageError
from orchestrator.plan import Plan
from orchestrator.records import lines, rests
from orchestrator.settings import Settings


def launch(
    settings: Settings,
    origins: Mapping[str, str],
    ray: Sharing | None = None,
    replay: str | None = None,
    beside: Beside | None = None,
    on_event: Callback | None = None,
    tuning: Mapping[str, Any] | None = None,
    streams: Path | None = None,
) -> tuple[str, Outcome]:
    """The whole story; returns the run's id and what it came to. origins: where the settings were given, by key; ray: the one
    to run on, which outlives the run and may serve others beside it, each in a thread of its own; replay: the file of the rests
    that an asynchronous run repeats; beside: what it has in common with other runs of this process; on_event: called with what
    happens, see `api.launch`; tuning: how settings were chosen by a measurement, to be kept in the record; streams: the
    file of what live streams gave in a run that is repeated.

    Raises UsageError and NotRerunnable before anything is started; an error of the run itself is in the outcome.
    """
    project = Path.cwd()
    settings = begin.pinned(initial.pinned(settings, project), project)
    found = rehearse(settings, project)
    plan, provenance = found.plan, found.provenance
    if replay is not None:
        plan = replace(plan, replay=_rests_of(Path(replay), plan))
    if streams is not None:
        plan = replace(plan, data=replace(plan.data, stream_log=_log_of_streams(streams)))
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
    display = for_stream() if beside is None else beside.display
    posted = signals.posted() if beside is None else nullcontext(beside.pending_signal)
    with posted as pending_signal, ThreadPoolExecutor(1) as pool:
        # MLflow and DVC take as long to import as Ray to start, so they do it side by side.
        opening = pool.submit(_open, settings, folder, provenance, origins, beside, tuning)
        job = Job(settings, plan, project, Audience(display, on_event), pending_signal, ray, secret, tuple(notes))
        return job.complete(opening, beginning_of(plan))


def _open(
    settings: Settings,
    folder: Path,
    provenance: Provenance,
    origins: Mapping[str, str],
    beside: Beside | None,
    tuning: Mapping[str, Any] | None,
) -> Record:
    if beside is None:
        record = open_record(settings, folder, provenance, origins)
        if tuning is not None:
            record.keep_tuning(tuning)
        return record
    try:
        record = open_record(settings, folder, provenance, origins, beside.tags)
    except ConfigurationError as error:  # what is wrong with the store is no fault of this run's settings
        raise RunFailed(error.message, error.remedy) from error
    beside.opened(record.tracker.run_id)
    return record


def _log_of_streams(file: Path) -> str:
    """Raises UsageError."""
    if not file.is_file():
        raise UsageError(
            f"streams={file}: there is no such file",
            "give the streams.jsonl of a run with live streams, which rerun=RUN_ID does",
        )
    return str(file.resolve())


def _rests_of(file: Path, plan: Plan) -> tuple[Mapping[str, Any], ...]:
    """Raises UsageError."""
    if plan.lockstep:
        raise UsageError(f"replay={file}: a run with sync={plan.sync.name} has no rests", "leave replay out")
    remedy = "give the rests.jsonl of an asynchronous run, which rerun=RUN_ID does"
    try:
        found = tuple(lines.read(file))
        rests.check(found, plan.data.shards)
    except OSError as error:
        raise UsageError(f"replay={file}: it cannot be read: {error.strerror}", remedy) from error
    except ValueError as error:
        raise UsageError(f"replay={file}: {error}", remedy) from None
    if not found:
        raise UsageError(f"replay={file}: it has no rest", remedy)
    return found
