"""`sweep=NAME|PATH [key=value ...]`: a search over settings, each trial an ordinary run; and `resume=SWEEP_ID`.

An ensemble is a sweep whose trials are its members, which are then made one (`combining.py`).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Literal

from orchestrator.adapters import table
from orchestrator.cluster.sessions import RaySession
from orchestrator.cluster.sessions.joined import JoinedRay
from orchestrator.cluster.sessions.local import Actors, LocalRay
from orchestrator.common.registry import is_reference
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import kept, redactor
from orchestrator.config.settings.loading import Conf
from orchestrator.driver.folders import project_folder
from orchestrator.driver.launch.resume import recorded_project
from orchestrator.driver.preflight import begin, checks, initial, visible_cards
from orchestrator.driver.recording import trust
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.driver.report.summary import last_words, not_recorded
from orchestrator.driver.terminal import signals
from orchestrator.driver.terminal.progress import for_stream
from orchestrator.errors import (
    ConfigurationError,
    OrchestratorError,
    RunFailed,
    UsageError,
)
from orchestrator.experiments import pictures
from orchestrator.experiments.search import laws
from orchestrator.experiments.search.described import Sweep
from orchestrator.experiments.search.outlook import look, verify
from orchestrator.experiments.search.sweeps import load_sweep
from orchestrator.experiments.sweep import combining
from orchestrator.experiments.sweep.record import (
    ENSEMBLE,
    SweepHistory,
    SweepRecord,
    by_whom,
    examine_sweep,
    folder_of,
    of_runs,
    recorded_trial,
    recorded_trials,
    require_secret,
    with_same_trials,
)
from orchestrator.experiments.sweep.report import SweepReport, again, report_of, summary_of_whole
from orchestrator.experiments.sweep.trial_board import Seen, TrialBoard, ranked, show_point
from orchestrator.experiments.sweep.trials import Trials, failed_all
from orchestrator.provenance.tracking import Past, Store, names
from orchestrator.worker.ensemble import combination_laws
from orchestrator.worker.model import construction

_LEAST_OVERRIDES = ("tracking.uri", "output")


def sweep(
    entry: Conf, overrides: Sequence[str], kind: Literal["sweep", "ensemble"] = "sweep", *, trusted: bool = False
) -> SweepReport:
    """The whole story. trusted: as `launch` takes it. Raises ConfigurationError before anything is started; an error of the
    sweep itself is in the report."""
    described = load_sweep(entry, [each for each in overrides if not each.startswith("output=")], kind=kind)
    project = Path.cwd()
    if "initial.name" not in described.course.space:
        described = replace(described, settings=initial.pinned(described.settings, project, trusted=trusted))
    if "begin.name" not in described.course.space:
        described = replace(described, settings=begin.pinned(described.settings, project, trusted=trusted))
    notes = _check(described, project)
    folder = project_folder(project)
    record = SweepRecord.create(described, folder, " ".join(redactor(described.settings).arguments(sys.argv)))
    return _drive(described, record, folder, [], notes=notes, trusted=trusted)


def resume_sweep(past: Past, overrides: Sequence[str], uri: str | None, *, trusted: bool = False) -> SweepReport:
    """Go on with a sweep: what had ended stands, what was interrupted goes on from its checkpoint. trusted: whether it may be
    somebody else's. Raises UsageError, ConfigurationError and NotRerunnable before anything is started."""
    project = Path.cwd()
    folder = project_folder(project)
    store = Store(uri, folder)
    if past.status == "FINISHED":
        raise UsageError(
            f"{past.kind} {past.run_id} has finished",
            "there is nothing to go on with; launch another one",
            code="sweep.of-finished",
        )
    files = folder_of(store, folder, past)
    kept_overrides = [each for each in overrides if each.partition("=")[0] not in _LEAST_OVERRIDES]
    history = SweepHistory.read(files.journal)
    first = _first_recorded(store, folder, past, history)
    trust.require_own(
        by_whom(past, first), trusted, "a resume", lambda: examine_sweep(past.kind, files, first, overrides)
    )
    kept_overrides = [*kept.from_variables(files.settings, kept_overrides), *kept_overrides]
    changed = with_same_trials(
        files,
        kept_overrides,
        f"leave it out, or launch a new {past.kind}; parallel and what changes only the execution may differ",
    )
    with files.leased():
        history = SweepHistory.read(files.journal)  # as it is now that nobody else writes it
        verify(changed.course, look(changed.course, history.ended, history.asked))
        notes = checks.take_cards(changed.settings)
        display = for_stream()
        display.say(f"going on with {past.kind} {past.run_id}: {len(history.ended)} runs have ended")
        require_secret([] if first is None else [first], kept_overrides)
        with contextlib.ExitStack() as worktrees:
            if first is not None:
                worktrees.enter_context(recorded_project(first, project, folder, display))
            record = SweepRecord.reopen(changed, store, files)
            tree = None if first is None else first.code.get("tree")
            return _drive(changed, record, folder, of_runs(kept_overrides), tree, notes=notes, trusted=trusted)


def _first_recorded(store: Store, folder: Path, past: Past, known: SweepHistory) -> Recorded | None:
    """The first run of the sweep that has a record, whose code is that of all. An ensemble needs the model of each member.
    Raises NotRerunnable."""
    if past.kind == ENSEMBLE:
        for place, run_id in sorted(known.begun.items()):
            recorded_trial(store, folder, past, place, run_id)
    there = (recorded for _, recorded in recorded_trials(store, folder, past, known))
    return next((each for each in there if each.files.settings.exists()), None)


def _check(described: Sweep, project: Path) -> list[str]:
    """Refuse what can be known to be wrong before anything is started; returns what is to be said of the cards. Raises
    ConfigurationError, NotRerunnable."""
    course = described.course
    if is_reference(course.search.name) and (problems := laws.problems(course.space, course.search, course.seed)):
        raise ConfigurationError(problems)
    ensemble = described.ensemble
    if ensemble is not None and (problems := names.registration_problems("ensemble.register", ensemble.register)):
        raise ConfigurationError(problems)
    if (
        ensemble is not None
        and is_reference(ensemble.combine)
        and (problems := combination_laws.problems(ensemble.combine, ensemble.options, ensemble.members))
    ):
        raise ConfigurationError(problems)
    found = checks.check(described.settings, project)
    if ensemble is not None and (problems := combining.problems(table.find(described.settings.pipeline.source))):
        raise ConfigurationError(problems)
    construction.rehearse(resolve(described.settings))
    return found.of_cards


def _drive(
    described: Sweep,
    record: SweepRecord,
    folder: Path,
    overrides: list[str],
    tree: str | None = None,
    *,
    notes: Sequence[str],
    trusted: bool,
) -> SweepReport:
    """Run the trials, write down what came of them, say it. overrides, tree, trusted: as `Trials` takes them; notes: to be said
    first."""
    course, known = described.course, record.known
    board = TrialBoard(Seen(described.metric, course.search.trials, described.direction, described.noun))
    for said in (_title(described, record.sweep_id), *(f"note: {each}" for each in notes)):
        board.say(said)
    error: OrchestratorError | None = None
    with signals.posted() as pending_signal:
        pending_signal.last_words = last_words(record.sweep_id, record.store.name, described.kind)
        try:
            with _ray(described, pending_signal, board) as ray:
                pending_signal.watch()
                trials = Trials(described, record, ray, board, pending_signal, folder, overrides, tree, trusted)
                error = failed_all(trials.complete(), known.ended)
            if described.ensemble is not None:
                combining.combine(described, record, folder, pending_signal)
                record.log_model(described)
        except OrchestratorError as found:
            error = found
        except BaseException as found:
            record.close(
                "failed", report_of(described, record, RunFailed(repr(found), code="sweep.trial-raised")).as_dict()
            )
            raise
        finally:
            board.close()
        report = report_of(described, record, error)
        trouble = _draw(described, record, report)
        if trouble is not None:
            board.say(f"note: {trouble}")
        lacking = record.close(report.status, report.as_dict())
        for note in record.tracker.notes():
            board.say(f"note: {note}")
        if lacking is not None:
            board.say(not_recorded(lacking, record.sweep_id, record.store.name, described.kind))
    if error is None and report.best is not None:
        board.say((_summary if described.ensemble is None else summary_of_whole)(described, report))
    return report


def _title(described: Sweep, sweep_id: str) -> str:
    side = f", {described.parallel} side by side" if described.parallel > 1 else ""
    ensemble, search = described.ensemble, described.course.search
    if ensemble is None:
        return f"sweep {sweep_id}: {search.trials} trials by {search.name}{side}"
    return (
        f"ensemble {sweep_id}: {ensemble.members} members, data: {ensemble.data}, combined by {ensemble.combine}{side}"
    )


@contextlib.contextmanager
def _ray(described: Sweep, pending_signal: signals.PendingSignal, board: TrialBoard) -> Iterator[RaySession]:
    """One for all trials: joined, or started here with room for as many as run side by side (rule D4)."""
    plan = resolve(described.settings)
    cluster = plan.cluster
    if cluster.address is not None:
        with JoinedRay(cluster.address) as joined:
            yield joined
        return
    members = cluster.members.total(cluster.members.most) * described.parallel
    cpus, cores = cluster.cpus * members, len(os.sched_getaffinity(0))
    if cpus > cores:
        board.say(f"note: {members} processes that want {cpus:g} CPUs share {cores} cores")
    port = described.settings.tracking.metrics_port
    actors = Actors(1.0, *visible_cards.for_ray(wanted=bool(cluster.gpus)))
    with LocalRay(cpus, cluster.timeouts.start_s, pending_signal.check, metrics_port=port, actors=actors) as ray:
        yield ray


def _draw(described: Sweep, record: SweepRecord, report: SweepReport) -> str | None:
    """The failure of drawing, or None."""
    title = described.settings.run.name or described.kind
    if described.ensemble is not None:
        return None if report.whole is None else pictures.draw_ensemble(record.files.pictures, report.whole, title)
    seen = pictures.SweepSeen(title, described.metric, described.direction, described.course.space, report.trials)
    return pictures.draw_sweep(record.files.pictures, seen)


def _summary(described: Sweep, report: SweepReport) -> str:
    best_one = report.best
    assert best_one is not None
    table = indent(ranked(report.trials, described.direction), "  ")
    return (
        f"{described.settings.run.name or 'sweep'}: {len(report.trials)} trials; the best is trial {best_one['number']}, "
        f"{described.metric} {best_one['value']:.6g} ({show_point(best_one['settings'])})\n{table}\n"
        f"  digest   {best_one['digest']}\n"
        f"  sweep    {report.sweep_id}, its files in .orchestrator/{report.sweep_id}/\n"
        f"  again    {again(described, report)}"
    )
