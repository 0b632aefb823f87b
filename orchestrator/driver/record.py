"""One run's record: its MLflow run and its folder, opened before the first step and closed with the right status."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Literal

from orchestrator.driver.folders import RunFolder
from orchestrator.driver.outcome import Outcome, Status
from orchestrator.driver.preflight import Provenance
from orchestrator.provenance import environment
from orchestrator.records.lines import LineFile
from orchestrator.settings import Settings, flat, to_yaml
from orchestrator.tracking import Store, Tracker

_MLFLOW: dict[Status, Literal["FINISHED", "FAILED", "KILLED"]] = {
    "finished": "FINISHED",
    "failed": "FAILED",
    "killed": "KILLED",
}


class Record:
    """Opened by `open_record`; `journal` and `trace` are appended live."""

    def __init__(self, store: Store, tracker: Tracker, files: RunFolder, orphans: list[str]) -> None:
        self.store = store
        self.tracker = tracker
        self.files = files
        self.orphans = orphans
        self.journal = LineFile(files.journal)
        self.trace = LineFile(files.trace)

    def close(self, outcome: Outcome) -> str | None:
        """Write down how the run ended, here and in MLflow; why MLflow could not take all of it, or None."""
        status = outcome.status
        ending: dict[str, object] = {"event": "run_ended", "status": status, "steps": outcome.steps}
        if outcome.error is not None:
            ending["error"] = outcome.error.message
            self.files.error.write_text(f"{outcome.error}\n\n{outcome.error.details}".rstrip() + "\n", encoding="utf-8")
            self.tracker.tag("error", outcome.error.message)
        if outcome.steps:
            self.tracker.tag("steps", str(outcome.steps))
        if outcome.digest is not None:
            self.tracker.tag("digest", outcome.digest)
        self.journal.append([ending])
        self.journal.close()
        self.trace.close()
        for path in self.files.artifacts():
            self.tracker.artifact(path, "run")
        for picture in sorted(self.files.pictures.glob("*")):
            self.tracker.artifact(picture, "pictures")
        if self.files.weights.exists():
            self.tracker.artifact(self.files.weights, "model")
        self.tracker.end(_MLFLOW[status])
        return self.tracker.trouble


def open_record(settings: Settings, folder: Path, provenance: Provenance) -> Record:
    """Create the MLflow run and its folder. Raises ConfigurationError when the store cannot be opened."""
    store = Store(settings.tracking.uri, folder)
    machine = environment.capture()
    with store.usable():
        experiment_id = store.experiment(settings.run.experiment)
        orphans = store.mark_orphans(experiment_id)
        tracker = Tracker.create(store, experiment_id, settings.run.name, every_s=settings.tracking.every_s)
        tracker.describe(flat(settings), _tags(provenance, machine))
    files = RunFolder(folder, tracker.run_id)
    files.lease()
    files.settings.write_text(to_yaml(settings), encoding="utf-8")
    files.environment.write_text(json.dumps(machine.as_dict(), indent=1) + "\n", encoding="utf-8")
    return Record(store, tracker, files, orphans)


def reopen_record(settings: Settings, store: Store, files: RunFolder) -> Record:
    """Go on with a run that was left; its folder is leased already. Raises ConfigurationError."""
    with store.usable():
        tracker = Tracker.reopen(store, files.path.name, every_s=settings.tracking.every_s)
        orphans = store.mark_orphans(tracker.experiment_id)
    files.error.unlink(missing_ok=True)
    return Record(store, tracker, files, orphans)


def _tags(provenance: Provenance, machine: environment.Environment) -> dict[str, str]:
    """What is found again by a search: who, from what code, which data, which packages."""
    tags = {
        "mlflow.source.name": " ".join(sys.argv),
        "mlflow.source.type": "LOCAL",
        "mlflow.user": os.environ.get("USER", str(os.getuid())),
        "packages_sha256": machine.packages_sha256,
        **{f"package.{name}": machine.packages[name] for name in ("torch", "ray", "numpy") if name in machine.packages},
    }
    if provenance.code is not None:
        tags["git.dirty"] = str(provenance.code.dirty).lower()
        if provenance.code.commit is not None:
            tags["git.commit"] = tags["mlflow.source.git.commit"] = provenance.code.commit
    return {**tags, **{f"data.{item.path}.md5": item.md5 for item in provenance.inputs}}
