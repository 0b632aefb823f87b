"""The record of a run is opened: its run in MLflow and its folder are made, or found again where the run goes on."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from orchestrator.common.values import labels_of
from orchestrator.config.settings import Settings, determining, redactor, shown, to_yaml
from orchestrator.config.settings.sources import COMMAND_LINE
from orchestrator.driver.folders import RunFolder, is_driven, write_json
from orchestrator.driver.preflight import unshared
from orchestrator.driver.preflight.checks import Provenance
from orchestrator.driver.recording import unsent
from orchestrator.driver.recording.project_files import ProjectFiles
from orchestrator.driver.recording.record import Contents, Record
from orchestrator.driver.report import description
from orchestrator.errors import ConfigurationError, NotRerunnable
from orchestrator.provenance.code import checkout, git, snapshot, worktree
from orchestrator.provenance.tracking import LABEL, SETTINGS, Store, Tracker, is_server, orphaned
from orchestrator.provenance.tracking.store import USER, user
from orchestrator.records import phases
from orchestrator.records.loggers import LoggedRun
from orchestrator.records.loggers.feed import LoggerFeed
from orchestrator.records.redaction import is_redacted

_IN_NAME = 3  # so many changed keys


def open_record(
    settings: Settings,
    folder: Path,
    provenance: Provenance,
    origins: Mapping[str, str],
    tags: Mapping[str, str] = MappingProxyType({}),
) -> Record:
    """Create the MLflow run and its folder, and keep the code; remove what a rerun that was killed has left. origins: where
    the settings were given, by key; tags: further ones of the MLflow run.

    Raises ConfigurationError when the store cannot be opened."""
    checkout.sweep(folder / checkout.FOLDER)
    with phases.of("DVC"):
        inputs, obstacles = provenance.inputs, provenance.obstacles  # asked before there is a run in the store
    with phases.of("MLflow"):
        store = Store(settings.tracking.uri, folder)
        _ = store.client
    with phases.of("run in the store"), store.usable_experiment(settings.run.experiment):
        experiment_id = store.experiment(settings.run.experiment)
        sent = unsent.send(store)  # before orphans are looked for: a run that is not told as ended looks like one
        orphans = store.mark_orphans(experiment_id, partial(is_driven, folder))
        tracker = Tracker.create(store, experiment_id, name_in_store(settings), every_s=settings.tracking.every_s)
        written = to_yaml(settings, public=True)
        as_written = {SETTINGS: hashlib.sha256(written.encode()).hexdigest()}
        tracker.describe(shown(settings), {**_tags(settings, provenance), **as_written, **tags})
    files = RunFolder(folder, tracker.run_id)
    files.lease()
    tracker.inputs([(item.path, item.md5, item.place) for item in inputs])
    unfinished = files.settings.with_suffix(".unfinished")
    try:
        unfinished.write_text(written, encoding="utf-8")
        unfinished.rename(files.settings)  # a part of it would be read as the whole
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        _give_up(tracker, files)
        raise ConfigurationError(
            [f"{files.settings} cannot be written: {error.strerror}"], "make room on its disk", code="record.unwritable"
        ) from error
    write_json(files.data, {"inputs": [item.as_dict() for item in inputs], "profile": None})
    write_json(files.origins, origins)
    if provenance.work is None:
        write_json(files.code, {"unrecorded": "; ".join(provenance.in_code)})
    with phases.of("snapshot of the code"):
        work, unkept = (None, None) if provenance.work is None else _keep(provenance.work, files, tracker)
    if unkept is not None:
        if settings.strict:
            _give_up(tracker, files)
            raise NotRerunnable(
                f"strict: this run could not be repeated exactly: {unkept}",
                "mend that, or leave strict out",
                code="rerun.code-not-kept",
            )
        obstacles = [*obstacles, unkept]
    with phases.of("what others lack"):
        lacking = unshared.of(provenance, store, tracker, settings.initial.name)
    earlier = [*(each.sentence for each in sent), *map(orphaned, orphans)]
    wanted = None if tags or is_server(store.uri) else another_name(settings, origins)
    if wanted is not None and any(each.name == tracker.name for each in store.past() if each.run_id != tracker.run_id):
        earlier.append(f"other runs are named {tracker.name}, too; to tell them apart: {wanted}")
    found = ProjectFiles(provenance.project, work, provenance.scans)
    contents, logger_feed = Contents(inputs, obstacles, work, lacking, found), _begin_loggers(settings, tracker, files)
    return Record(settings, store, tracker, files, earlier, contents, logger_feed)


def _give_up(tracker: Tracker, files: RunFolder) -> None:
    """No run becomes of it; a process that lives on, such as a notebook's, keeps nothing of it."""
    tracker.end("FAILED")
    files.release()


def reopen_record(
    settings: Settings, store: Store, files: RunFolder, provenance: Provenance, since: int, told_from: int
) -> Record:
    """Go on with a run that was left; its folder is leased already. since: the step from which it is computed again; told_from:
    from which MLflow is told. Raises ConfigurationError."""
    inputs, obstacles = provenance.inputs, provenance.obstacles  # before the run in the store is touched
    with store.usable(f"run {files.path.name}"):
        tracker = Tracker.reopen(store, files.path.name, every_s=settings.tracking.every_s, since=told_from)
        orphans = store.mark_orphans(tracker.experiment_id, partial(is_driven, files.path.parent))
    for stale in (files.error, files.memory, files.fetched):
        stale.unlink(missing_ok=True)
    earlier = [orphaned(run_id) for run_id in orphans]
    found = ProjectFiles(provenance.project, provenance.work, provenance.scans)
    contents = Contents(inputs, obstacles, provenance.work, project_files=found)
    logger_feed = _begin_loggers(settings, tracker, files, since)
    return Record(settings, store, tracker, files, earlier, contents, logger_feed)


def name_in_store(settings: Settings) -> str:
    """If nobody has named the run, the class of its pipeline. MLflow, which would invent a name, need not be imported then."""
    named = shown(settings)["run.name"]
    return settings.pipeline.target.rpartition(":")[2] if named is None else str(named)


def another_name(settings: Settings, origins: Mapping[str, str]) -> str | None:
    """The argument that gives the run a name of its own: the one it has, followed by what the command line changed of its
    result, credentials left out. None if that is nothing, or the name was typed."""
    values, result = shown(settings), determining(settings)
    typed = [key for key, where in origins.items() if where.startswith(COMMAND_LINE)]
    changed = [key for key in typed if key in result and not is_redacted(values[key])][:_IN_NAME]
    if settings.run.name is None or not changed or "run.name" in typed:
        return None
    return shlex.quote(
        "run.name=" + "-".join([values["run.name"], *(f"{key.rpartition('.')[2]}{values[key]}" for key in changed)])
    )


def _keep(work: worktree.WorkTree, files: RunFolder, tracker: Tracker) -> tuple[worktree.WorkTree | None, str | None]:
    """Write the snapshot of the code: the tree as it was written, or an obstacle to a rerun. The error is reported as a tag,
    too, and does not end the run."""
    try:
        kept = snapshot.keep(work, tracker.run_id)
        snapshot.bundle(kept, files.bundle)
        snapshot.patch(kept, files.patch)
    except (worktree.Unrecorded, git.GitError, OSError) as error:
        tracker.tag("code.unrecorded", str(error))
        write_json(files.code, {"unrecorded": str(error)})
        return None, f"the code is not recorded: {error}; mend that, and launch it again"
    write_json(files.code, kept.as_dict())
    return kept.work, None


def _tags(settings: Settings, provenance: Provenance) -> dict[str, str]:
    """Tags by which runs are found: the user, the code, the data."""
    tags = {
        "mlflow.source.name": " ".join(redactor(settings).arguments(sys.argv)),
        "mlflow.source.type": "LOCAL",
        USER: user(),
    }
    work = provenance.work
    if work is not None:
        tags["git.dirty"] = str(work.dirty).lower()
        tags["git.tree"] = work.tree
        if work.origin is not None:
            tags["git.commit"] = tags["mlflow.source.git.commit"] = work.origin
    return {**tags, **{f"data.{item.path}.md5": item.md5 for item in provenance.inputs}}


def _begin_loggers(settings: Settings, tracker: Tracker, files: RunFolder, since: int | None = None) -> LoggerFeed:
    """Note and labels go to MLflow, and what MLflow is told of the run from now on goes to the writers of `tracking.also`.
    since: the first step that a run which goes on tells again."""
    run = settings.run
    public = shown(settings)
    note: str | None = public["run.note"]
    known = redactor(settings)
    tags = {name: None if value is None else known.text(value) for name, value in labels_of(run.tags).items()}
    for name, value in tags.items():
        tracker.tag(f"{LABEL}{name}", "true" if value is None else value)
    if note is not None:
        tracker.tag(description.TAG, note)
    logged_run = LoggedRun(
        tracker.run_id, tracker.name, run.experiment, files.path.resolve(), public, note, tags, since
    )
    logger_feed = LoggerFeed(settings.tracking.also, logged_run)
    tracker.listeners.append(logger_feed.metrics)
    return logger_feed
