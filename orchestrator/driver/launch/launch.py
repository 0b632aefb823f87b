"""`conf=NAME|PATH [key=value ...]`: check, then start, train, record and sum up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.config.plan import Plan, Segments
from orchestrator.config.settings import Settings
from orchestrator.driver.folders import project_folder
from orchestrator.driver.launch.rehearsal import rehearse
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
from orchestrator.errors import ConfigurationError, RunFailed, UsageError
from orchestrator.provenance.tracking import KIND
from orchestrator.records import barriers, lines, trace


@dataclass(frozen=True)
class Repeated:
    """The records of another run that a run repeats: files, or None where it has no such thing."""

    replay: str | None = None  # the sync barriers of an asynchronous run
    segments: str | None = None  # the steps that an audit repeats, as `rerun=RUN_ID audit=N` writes them
    streams: str | None = None  # the samples that live streams gave
    sat_out: str | None = None  # the trace that tells which shards sat out, since their site was away

    def planned(self, plan: Plan) -> Plan:
        """Raises UsageError."""
        if self.replay is not None:
            plan = replace(plan, replay=_barriers_of(Path(self.replay), plan))
        if self.streams is not None:
            plan = replace(plan, data=replace(plan.data, stream_log=_log_of_streams(Path(self.streams))))
        if self.sat_out is not None:
            plan = replace(plan, data=replace(plan.data, sat_out=_sat_out_of(Path(self.sat_out), plan)))
        return plan if self.segments is None else replace(plan, segments=_segments_of(Path(self.segments), plan))


_WHOLE = Repeated()


def launch(
    settings: Settings,
    origins: Mapping[str, str],
    repeated: Repeated = _WHOLE,
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
    found = rehearse(settings, project)
    settings, plan, provenance = found.settings, repeated.planned(found.plan), found.provenance
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
    display = display if plan.segments is None else SegmentProgress(display, plan.segments.ranges)
    posted = signals.posted() if beside is None else nullcontext(beside.pending_signal)
    with (
        posted as pending_signal,
        supervised(settings, typed, pending_signal) as supervision,
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
    if repeated == _WHOLE and beside is None:
        return with_weights(run_id, outcome, settings.tracking.uri, typed)
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


def _log_of_streams(file: Path) -> str:
    """Raises UsageError."""
    if not file.is_file():
        raise UsageError(
            f"streams={file}: there is no such file",
            "give the streams.jsonl of a run with live streams, which rerun=RUN_ID does",
            code="replay.no-streams",
        )
    return str(file.resolve())


def _sat_out_of(file: Path, plan: Plan) -> dict[int, tuple[int, ...]]:
    """Raises UsageError."""
    remedy = "give the trace.jsonl of a run with data.sites, which rerun=RUN_ID does"
    try:
        found = trace.sat_out(file)
        known = range(plan.data.shards)
        if not all(shard in known for shards in found.values() for shard in shards):
            raise ValueError(f"it has shards that are none of {plan.data.shards}")
    except OSError as error:
        raise UsageError(
            f"sat_out={file}: it cannot be read: {error.strerror}", remedy, code="replay.sat-out-unreadable"
        ) from error
    except ValueError as error:
        raise UsageError(f"sat_out={file}: {error}", remedy, code="replay.sat-out") from None
    return found


def _segments_of(file: Path, plan: Plan) -> Segments:
    """Raises UsageError."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        ranges = tuple((int(first), int(end)) for first, end in values["ranges"])
        found = Segments(str(values["of"]), str(values["storage"]), ranges)
        if not ranges or any(first >= end for first, end in ranges) or sorted(ranges) != list(ranges):
            raise ValueError("its ranges are not in order")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"segments={file}: it cannot be used: {error}", "rerun=RUN_ID audit=N writes it", code="replay.segments"
        ) from None
    if not plan.lockstep:
        raise UsageError(
            f"segments={file}: a run with sync={plan.sync.name} has none",
            "leave segments out",
            code="replay.no-segments",
        )
    return found


def _barriers_of(file: Path, plan: Plan) -> tuple[Mapping[str, Any], ...]:
    """Raises UsageError."""
    if plan.lockstep:
        raise UsageError(
            f"replay={file}: a run with sync={plan.sync.name} has no rests", "leave replay out", code="replay.no-rests"
        )
    remedy = "give the rests.jsonl of an asynchronous run, which rerun=RUN_ID does"
    try:
        found = tuple(lines.read(file))
        barriers.check(found, plan.data.shards)
    except OSError as error:
        raise UsageError(
            f"replay={file}: it cannot be read: {error.strerror}", remedy, code="replay.rests-unreadable"
        ) from error
    except ValueError as error:
        raise UsageError(f"replay={file}: {error}", remedy, code="replay.rests") from None
    if not found:
        raise UsageError(f"replay={file}: it has no rest", remedy, code="replay.empty")
    return found
