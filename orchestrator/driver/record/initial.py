"""The weights that a run begins with: found in MLflow before anything is started, pinned to a version and a digest, fetched.

They lie in `.orchestrator/initial/`, named by their digest, so runs that begin with the same ones share a file.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from orchestrator.driver.record.folders import project_folder
from orchestrator.engine.compute import initial
from orchestrator.errors import ConfigurationError, NotRerunnable
from orchestrator.plan import Initial
from orchestrator.plan.resolve import resolve
from orchestrator.settings import InitialSettings, Settings
from orchestrator.tracking import Store, models


def pinned(settings: Settings, project: Path) -> Settings:
    """The settings with the model's version and the digest of its weights, which are in the project's folder then; as they are
    where no model is named. Raises ConfigurationError, and NotRerunnable where these weights were recorded and are others now,
    or gone."""
    wanted = settings.initial
    if wanted.name is None:
        return settings
    folder = project_folder(project)
    if wanted.digest is not None and _holds(project, resolve(settings).run.initial):
        return settings
    store = Store(settings.tracking.uri, folder)
    try:
        name, found = _fetched(store, wanted.name, folder)
    except ConfigurationError as error:
        if wanted.digest is None:
            raise
        message = "; ".join(error.problems)
        raise NotRerunnable(f"{message}; the run began with weights of digest {wanted.digest}", error.remedy) from error
    if wanted.digest not in (None, found):
        raise NotRerunnable(
            f"initial: {name} has weights of digest {found} now, and the run began with {wanted.digest}",
            "have that version again, or launch a new run without initial.digest",
        )
    return dataclasses.replace(settings, initial=InitialSettings(name=name, digest=found))


def _holds(project: Path, known: Initial | None) -> bool:
    """Whether the project has the weights already, whole."""
    assert known is not None
    file = project / known.file
    return file.exists() and initial.digest_of(initial.read(file, known.name)) == known.digest


def _fetched(store: Store, name: str, folder: Path) -> tuple[str, str]:
    """The model's pinned name, and the digest of its weights."""
    place = folder / "initial"
    place.mkdir(exist_ok=True)
    with store.usable():
        name = models.pin(store, name)
        with tempfile.TemporaryDirectory(dir=place, prefix=".new-") as new:
            weights = Path(new) / models.WEIGHTS
            models.fetch_weights(store, name, weights)
            found = initial.digest_of(initial.read(weights, name))
            weights.replace(place / f"{found}.safetensors")
    return name, found
