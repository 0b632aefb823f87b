"""Tells writers beside MLflow of a run, and gives it the note and the labels by which it is found."""

from __future__ import annotations

from orchestrator.common.values import labels_of
from orchestrator.config.settings import Settings, redactor, shown
from orchestrator.driver.folders import RunFolder
from orchestrator.driver.report import description
from orchestrator.provenance.tracking import LABEL, Tracker
from orchestrator.records.loggers import LoggedRun
from orchestrator.records.loggers.feed import LoggerFeed


def begin(settings: Settings, tracker: Tracker, files: RunFolder, since: int | None = None) -> LoggerFeed:
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
