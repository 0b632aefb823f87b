"""The trained model and the pictures of a recorded run: files of its folder, fetched from MLflow's artifacts where they are not
on this machine."""

from __future__ import annotations

from pathlib import Path

from orchestrator.driver.folders import RunFolder
from orchestrator.errors import UsageError
from orchestrator.provenance.tracking import Past, Store, models


def model(store: Store, past: Past, files: RunFolder) -> Path:
    """The folder of its trained model. Raises UsageError where there is none, ConfigurationError."""
    if not files.model.exists():
        with store.usable():
            there = models.fetch_folder(store, past.run_id, files.model)
        if not there:
            raise _missing(store, past, files.model)
    return files.model


def weights(store: Store, past: Past, files: RunFolder) -> Path:
    """The file of its trained weights. Raises UsageError where there is none, ConfigurationError."""
    if not files.weights.exists():
        store.fetch(past.run_id, "model", files.path)
    if not files.weights.exists():
        raise _missing(store, past, files.weights)
    return files.weights


def pictures(store: Store, past: Past, files: RunFolder) -> list[Path]:
    """The files of its pictures, by their names; none of a run that has drawn none. Raises ConfigurationError."""
    files.pictures.mkdir(exist_ok=True)
    if not any(files.pictures.iterdir()):
        store.fetch(past.run_id, "pictures", files.pictures)
    return sorted(files.pictures.glob("*"))


def _missing(store: Store, past: Past, place: Path) -> UsageError:
    return UsageError(
        f"run {past.run_id} ({past.status}) has no trained model, neither in {place} nor in {store.shown}",
        "a run has one once it has finished; wait for its end, or go on with it by resume=",
        code="record.no-model",
    )
