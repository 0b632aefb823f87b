"""The record of a sweep: its folder with the journal, and the MLflow run of which its trials are children.

    sweep.yaml     the sweep whole: what every run is, the space, the search
    sweep.jsonl    the journal: what was asked, which runs began, what they came to, who went on; appended live
    verdict.json   of a rerun

The journal holds what the next batch depends on, so a sweep whose driver was killed goes on from it (`SweepHistory.read`).
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.config.settings import kept, redactor
from orchestrator.driver import copies
from orchestrator.driver.folders import RunFolder, is_driven
from orchestrator.driver.recording import trust
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.errors import ConfigurationError, NotRerunnable, RunFailed, Status, UsageError
from orchestrator.experiments.search.asking import Trial
from orchestrator.experiments.search.described import Sweep
from orchestrator.experiments.search.outlook import Cut, Ended, TrialRung
from orchestrator.experiments.search.sweeps import load_sweep
from orchestrator.provenance.tracking import KIND, STATUS, Past, Store, Tracker, names
from orchestrator.provenance.tracking.models import ModelFolder, Registration
from orchestrator.provenance.tracking.store import USER, user
from orchestrator.records import lines
from orchestrator.records.identity import same
from orchestrator.records.lines import LineFile

SWEEP = "sweep"  # as the kind of an MLflow run, and as the folder of its artifacts
ENSEMBLE = "ensemble"  # as a kind
_OF_SWEEPS = ("parallel=", "ensemble.", "search.")  # keys that a run has not
# Codes of a run that was removed: for good, and so that it can come back.
GONE = ("mlflow.no-such-run", "mlflow.run-deleted")
_TRIAL_GONE = "sweep.trial-gone"
_LOADER = "orchestrator.worker.ensemble.pyfunc"


class SweepFolder:
    """The files of one sweep, in `.orchestrator/<sweep id>/`."""

    def __init__(self, folder: Path, sweep_id: str) -> None:
        self.run = RunFolder(folder, sweep_id)
        self.path = self.run.path
        self.settings = self.path / "sweep.yaml"
        self.journal = self.path / "sweep.jsonl"
        self.verdict = self.path / "verdict.json"
        self.pictures = self.path / "pictures"
        self.model = self.path / "model"  # of an ensemble

    def lease(self) -> None:
        """Keep every other driver away. Raises UsageError."""
        self.run.lease()

    def leased(self) -> contextlib.AbstractContextManager[None]:
        """As that of a run."""
        return self.run.leased()

    def release(self) -> None:
        """Let other drivers have it."""
        self.run.release()

    def artifacts(self) -> list[Path]:
        return [file for file in (self.settings, self.journal, self.verdict) if file.exists()]


@dataclass
class SweepHistory:
    """The history that the journal tells. asked: batches of trials; begun: the newest run of each place; ended: what it came
    to; cuts: decisions; combined: of an ensemble, what the whole came to."""

    asked: list[list[Trial]] = field(default_factory=list)
    begun: dict[TrialRung, str] = field(default_factory=dict)
    ended: dict[TrialRung, Ended] = field(default_factory=dict)
    cuts: list[Cut] = field(default_factory=list)
    combined: dict[str, Any] | None = None

    @classmethod
    def read(cls, journal: Path) -> SweepHistory:
        """A fold over the journal; a torn last line is left out. Raises UsageError for a damaged one."""
        known = cls()
        try:
            for event in lines.written(journal):
                known._take(event)
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{journal} is damaged: {type(error).__name__}: {error}",
                "restore it from the artifacts of the sweep",
                code="sweep.journal-damaged",
            ) from None
        return known

    def _take(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "asked":
                self.asked.append([Trial(int(each["number"]), dict(each["point"])) for each in event["trials"]])
            case "begun":
                self.begun[event["trial"], event["rung"]] = event["run_id"]
            case "ended":
                ended = {key: event[key] for key in ("run_id", "value", "digest", "why")}
                self.ended[event["trial"], event["rung"]] = Ended(**ended)
            case "kept":
                self.cuts.append(Cut(event["batch"], event["rung"], tuple(event["kept"])))
            case "combined":
                self.combined = dict(event["whole"])


class SweepRecord:
    """The record while the sweep runs; made by `create` or `reopen`. Trials may tell it things from threads of their own."""

    def __init__(self, sweep: Sweep, store: Store, tracker: Tracker, files: SweepFolder) -> None:
        self._redactor = redactor(sweep.settings)
        self.store = store
        self.tracker = tracker
        self.files = files
        self.known = SweepHistory.read(files.journal)
        self._journal = LineFile(files.journal)
        self._lock = threading.Lock()

    @property
    def sweep_id(self) -> str:
        return self.tracker.run_id

    @classmethod
    def create(cls, sweep: Sweep, folder: Path, command: str) -> SweepRecord:
        """Begin the record of a sweep. command: the command, for MLflow's page, without credentials. Raises
        ConfigurationError when the store cannot be opened."""
        run, tracking = sweep.settings.run, sweep.settings.tracking
        store = Store(tracking.uri, folder)
        with store.usable_experiment(run.experiment):
            experiment_id = store.experiment(run.experiment)
            store.mark_orphans(experiment_id, partial(is_driven, folder))
            name = redactor(sweep.settings).setting("run.name", run.name) or sweep.kind
            tracker = Tracker.create(store, experiment_id, name, every_s=tracking.every_s)
            tracker.describe(
                parameters(sweep),
                {KIND: sweep.kind, USER: user(), "mlflow.source.name": command, "mlflow.source.type": "LOCAL"},
            )
        files = SweepFolder(folder, tracker.run_id)
        files.lease()
        try:
            files.settings.write_text(sweep.as_yaml(), encoding="utf-8")
        except OSError as error:
            tracker.end("FAILED")
            raise ConfigurationError(
                [f"{files.settings} cannot be written: {error.strerror}"],
                "make room on its disk",
                code="record.unwritable",
            ) from error
        return cls(sweep, store, tracker, files)

    @classmethod
    def reopen(cls, sweep: Sweep, store: Store, files: SweepFolder) -> SweepRecord:
        """Go on with a sweep that was left; its folder is leased already."""
        with store.usable(f"run {files.path.name}"):
            tracker = Tracker.reopen(store, files.path.name, every_s=sweep.settings.tracking.every_s)
            store.mark_orphans(tracker.experiment_id, partial(is_driven, files.path.parent))
        files.run.fetched.unlink(missing_ok=True)
        return cls(sweep, store, tracker, files)

    def asked(self, batch: int, trials: Sequence[Trial]) -> None:
        points = [{"number": trial.number, "point": trial.point} for trial in trials]
        self._note({"event": "asked", "batch": batch, "trials": points})

    def begun(self, place: TrialRung, run_id: str) -> None:
        self._note({"event": "begun", "trial": place[0], "rung": place[1], "run_id": run_id})

    def ended(self, place: TrialRung, ended: Ended) -> None:
        why = None if ended.why is None else self._redactor.text(ended.why)
        fields = {"run_id": ended.run_id, "value": ended.value, "digest": ended.digest, "why": why}
        self._note({"event": "ended", "trial": place[0], "rung": place[1], **fields})

    def cut(self, cut: Cut) -> None:
        self._note({"event": "kept", "batch": cut.batch, "rung": cut.rung, "kept": list(cut.kept)})

    def combined(self, whole: Mapping[str, Any]) -> None:
        """Record the outcome of an ensemble, whose files are in its folder."""
        self._note({"event": "combined", "whole": dict(whole)})

    def log_model(self, sweep: Sweep) -> None:
        """Log an ensemble, as one model."""
        ensemble, whole = sweep.ensemble, self.known.combined
        assert ensemble is not None
        assert whole is not None
        rows: list[tuple[int, dict[str, Any]]] = [(0, {"disagreement": whole["disagreement"]})]
        for name, value in whole["metrics"].items():
            rows.append((0, {name: value, f"mean_of_members/{name}": whole["mean_of_members"][name]}))
            rows += [(member, {f"members/{name}": each[name]}) for member, each in enumerate(whole["of_members"])]
        for member, values in rows:
            self.tracker.metrics(member, {name: value for name, value in values.items() if value is not None})
        self.tracker.tag("digest", whole["digest"])
        name = names.of_logged_model(sweep.settings.run.name or ENSEMBLE)
        described = {"members": str(ensemble.members), "combine": ensemble.combine, "digest": whole["digest"]}
        registration = None if ensemble.register is None else Registration.parse(ensemble.register)
        folder = ModelFolder(self.files.model, 0, described, name=name, loader=_LOADER, tag="model")
        self.tracker.model(folder, registration)

    def _note(self, event: Mapping[str, Any]) -> None:
        """Raises RunFailed when it is not on its way to the disk: what follows from it must not begin."""
        with self._lock:
            self._journal.append([event])
            self.known._take(event)
            if self._journal.trouble is not None:
                raise RunFailed(
                    f"{self.files.journal} cannot be written: {self._journal.trouble}",
                    "make room on its disk; the sweep goes on where its journal ends",
                    code="sweep.journal-unwritable",
                )

    def close(self, status: Status, report: Mapping[str, Any]) -> str | None:
        """Write down how the sweep ended, here and in MLflow; why MLflow could not take all of it, or None."""
        report_file = self.files.path / "sweep.json"
        with contextlib.suppress(RunFailed, OSError):  # the error of the sweep says so
            self._note({"event": "sweep_ended", "status": status})
            report_file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        self._journal.close()
        best = report["best"]
        metric = report["objective"]["metric"]
        for each in report["trials"]:
            if each["value"] is not None:
                self.tracker.metrics(each["number"], {f"trials/{metric}": each["value"]})
        if best is not None and self.known.combined is None:
            self.tracker.metrics(0, {metric: best["value"]})
            for key in ("number", "run_id", "digest"):
                self.tracker.tag(
                    {"number": "best.trial", "run_id": "best.run", "digest": "digest"}[key], str(best[key])
                )
        for path in [*self.files.artifacts(), *([report_file] if report_file.exists() else [])]:
            self.tracker.artifact(path, SWEEP)
        for picture in sorted(self.files.pictures.glob("*")):
            self.tracker.artifact(picture, "pictures")
        self.tracker.end(STATUS[status])
        self.files.release()
        return self.tracker.trouble


def of_runs(overrides: Sequence[str]) -> list[str]:
    """Those that the runs of a sweep take, too."""
    return [each for each in overrides if not each.startswith(_OF_SWEEPS)]


def require_secret(recorded: Iterable[Recorded], overrides: Sequence[str]) -> None:
    """Raises NotRerunnable where private runs have begun with a secret that is not here, and ConfigurationError."""
    private = next((each for each in recorded if each.is_private), None)
    if private is not None:
        private.secret(of_runs(overrides))


def with_same_trials(files: SweepFolder, overrides: Sequence[str], remedy: str) -> Sweep:
    """The recorded sweep with overrides that change only the execution. remedy: of the error for others. Raises
    ConfigurationError."""
    settings = str(files.settings)
    before, after = load_sweep(settings, kept.given_again(files.settings, overrides)), load_sweep(settings, overrides)
    now = after.determining()
    changed = sorted(key for key, value in before.determining().items() if not same(value, now[key]))
    if changed:
        raise ConfigurationError(
            [f"{key}: it determines the trials, and here it has to stay as it was" for key in changed],
            remedy,
            code="sweep.determines-trials",
        )
    return after


def find_sweep(name: str, store: Store) -> Past | None:
    """The sweep or ensemble of this name; None where it names a run. Raises UsageError for a name that names nothing."""
    past = store.find(name)
    return past if past.kind in (SWEEP, ENSEMBLE) else None


def folder_of(store: Store, folder: Path, past: Past) -> SweepFolder:
    """The files of a recorded sweep, fetched where they are not here. Raises NotRerunnable where there are none."""
    files = SweepFolder(folder, past.run_id)
    copies.bring(store, past, files.run, SWEEP, [files.settings, files.journal])
    if not (files.settings.exists() and files.journal.exists()):
        raise NotRerunnable(
            f"the record of sweep {past.run_id} is not here, and MLflow has not got it",
            "type the command where it was launched, in the folder of its project, or launch it again",
            code="sweep.no-record",
        )
    return files


def recorded_trial(store: Store, folder: Path, past: Past, place: TrialRung, run_id: str) -> Recorded:
    """The run of a trial of the sweep or ensemble `past`. Raises NotRerunnable, naming both, where MLflow has it no more."""
    try:
        found = store.find(run_id)
    except UsageError as error:
        if error.code not in GONE:
            raise
        noun = "member" if past.kind == ENSEMBLE else "trial"
        again = f"launch the {past.kind} again; runs of it that are there can be repeated one by one: rerun=RUN_ID"
        raise NotRerunnable(
            f"{past.kind} {past.run_id} lacks its {noun} {place[0]}: {error.message}",
            again if error.code == GONE[0] else error.remedy,
            code="sweep.trial-gone",
        ) from None
    return Recorded.of(store, folder, found)


def recorded_trials(
    store: Store, folder: Path, past: Past, known: SweepHistory
) -> Iterator[tuple[TrialRung, Recorded]]:
    """The runs of a sweep or ensemble that MLflow still has, in order. Raises NotRerunnable where it has lost all of them."""
    gone, is_any_there = None, False
    for place, run_id in sorted(known.begun.items()):
        try:
            found = recorded_trial(store, folder, past, place, run_id)
        except NotRerunnable as error:
            if error.code != _TRIAL_GONE:
                raise
            gone = gone or error
            continue
        is_any_there = True
        yield place, found
    if gone is not None and not is_any_there:
        raise gone


def by_whom(past: Past, recorded: Recorded | None) -> Past:
    """The same sweep with who launched it. recorded: one of its runs, which tells of that where an older sweep does not."""
    return past if past.user is not None or recorded is None else replace(past, user=recorded.past.user)


def examine_sweep(
    kind: str, files: SweepFolder, recorded: Recorded | None, overrides: Sequence[str]
) -> trust.WouldExecute:
    """The code that a sweep or an ensemble (`kind`) would execute, by its own file and by one of its runs; nothing of either
    is imported. Raises ConfigurationError and NotRerunnable."""
    if recorded is None:
        raise NotRerunnable(
            f"{kind} {files.path.name} has no run that tells of its code", "launch it again", code="sweep.no-code"
        )
    return trust.examine_whole(recorded, files.settings, kind, of_runs(overrides))


def parameters(sweep: Sweep) -> dict[str, Any]:
    """The parameters of a sweep that MLflow is told."""
    found: dict[str, Any] = {}
    known = redactor(sweep.settings)
    for section, content in sweep.as_dict().items():
        if isinstance(content, dict):
            shown = known.setting(section, content)
            found |= {f"{section}.{key}": json.dumps(value) for key, value in shown.items()}
        else:
            found[section] = content
    return found
