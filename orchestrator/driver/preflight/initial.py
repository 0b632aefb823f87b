"""The weights that a run begins with: found in MLflow before anything is started, pinned to a version and a digest, fetched.

They lie in `.orchestrator/initial/`, named by their digest, so runs that begin with the same ones share a file. They are
fetched only if that file is not there or holds other weights. A digest stands for its weights wherever they come from: the
store, a crate, or a run before.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

from orchestrator.adapters.lightning import checkpoints
from orchestrator.checkpoint.weights import Weights
from orchestrator.common import temporary
from orchestrator.config.settings import InitialSettings, Settings
from orchestrator.driver.folders import project_folder
from orchestrator.driver.preflight import ownership
from orchestrator.errors import ConfigurationError, NotRerunnable
from orchestrator.numerics.digests import state_digest
from orchestrator.provenance.tracking import Store, models
from orchestrator.worker.model import initial

_FOLDER = "initial"


def pinned(settings: Settings, project: Path, *, trusted: bool = False) -> Settings:
    """The settings with the model's version and the digest of its weights, which are in the project's folder then; as they are
    where no model is named. trusted: they may be those of somebody else. Raises ConfigurationError, Untrusted, and
    NotRerunnable where these weights were recorded and are others now, or gone."""
    wanted = settings.initial
    if wanted.name is None:
        return settings
    folder = project_folder(project)
    if held_in(folder, wanted.digest):
        return settings
    found = brought(wanted, Store(settings.tracking.uri, folder), folder, trusted=trusted)
    return dataclasses.replace(settings, initial=found)


def place_of(folder: Path, digest: str | None) -> Path:
    """The file of the weights of this digest. folder: a project's `.orchestrator`."""
    return folder / _FOLDER / f"{digest}.safetensors"


def held_in(folder: Path, digest: str | None) -> bool:
    """Whether the folder has the weights of this digest, whole."""
    file = place_of(folder, digest)
    return digest is not None and file.exists() and _digest_of(file) == digest


def brought(wanted: InitialSettings, store: Store, folder: Path, *, trusted: bool = False) -> InitialSettings:
    """The model pinned to what its name means now, or meant when its digest was recorded; its weights are in the folder then.
    Raises as `pinned`."""
    assert wanted.name is not None
    if held_in(folder, wanted.digest):
        return wanted
    try:
        if wanted.name.endswith(checkpoints.ENDING):
            name, found = wanted.name, _of_checkpoint(Path(wanted.name), folder)
        else:
            with store.usable():
                name = models.pin(store, wanted.name)
                found = _found(store, name, folder, trusted=trusted)
    except ConfigurationError as error:
        if wanted.digest is None:
            raise
        message = "; ".join(error.problems)
        raise NotRerunnable(
            f"{message}; the run began with weights of digest {wanted.digest}", error.remedy, code="initial.missing"
        ) from error
    if wanted.digest not in (None, found):
        raise NotRerunnable(
            f"initial: {name} has weights of digest {found} now, and the run began with {wanted.digest}",
            "have that version again, or launch a new run without initial.digest",
            code="initial.other-weights",
        )
    return InitialSettings(name=name, digest=found)


def keep(weights: Path, digest: str | None, folder: Path, whose: str) -> None:
    """Put weights that came with a record among those of the folder. whose: in words, for the message. Raises NotRerunnable
    where they are others than the record says."""
    if held_in(folder, digest):
        return
    found = _digest_of(weights)
    if found != digest:
        said = "cannot be read" if found is None else f"have the digest {found}"
        raise NotRerunnable(
            f"the weights {weights.name} {whose} {said}, and the run began with {digest}",
            "ask for the record again",
            code="initial.kept-weights",
        )
    _put(weights, place_of(folder, digest))


def lend(digest: str | None, folder: Path, project: Path) -> None:
    """Let another project, such as a work tree, have the weights that this folder holds, if it does."""
    if held_in(folder, digest):
        _put(place_of(folder, digest), place_of(project_folder(project), digest))


def _found(store: Store, name: str, folder: Path, *, trusted: bool) -> str:
    """The digest of the weights of a pinned model, which are in the folder then: they are fetched unless those that its run
    has reported are there. Raises Untrusted."""
    reported = models.digest_of(store, name)
    if reported is not None and held_in(folder, reported):
        return reported
    if not (trusted or ownership.is_of(user := models.user_of(store, name))):
        places = {"its weights": models.location(store, name) or store.uri}
        whose = f"the model {name} was made by {user or 'somebody unknown'}"
        raise ownership.Untrusted(whose, "initial=", ownership.WouldOpen(places))
    (folder / _FOLDER).mkdir(exist_ok=True)
    with temporary.folder(folder / _FOLDER) as new:
        weights = new / models.WEIGHTS
        models.fetch_weights(store, name, weights)
        found = state_digest(initial.read(weights, name))
        weights.replace(place_of(folder, found))
    return found


def _of_checkpoint(file: Path, folder: Path) -> str:
    """The digest of the weights of a checkpoint of Lightning, which are in the folder then."""
    given = checkpoints.weights_of(file)
    digest = state_digest(given)
    if not held_in(folder, digest):
        (folder / _FOLDER).mkdir(exist_ok=True)
        with temporary.folder(folder / _FOLDER) as new:
            weights = new / models.WEIGHTS
            try:
                Weights(given).write(weights)
            except (OSError, ValueError) as error:
                raise ConfigurationError(
                    [f"initial: the weights of {file} cannot be kept in {folder / _FOLDER}: {error}"],
                    "make room on its disk, or name a file of other weights",
                    code="initial.not-kept",
                ) from error
            weights.replace(place_of(folder, digest))
    return digest


def _digest_of(file: Path) -> str | None:
    """None of a file that holds no weights."""
    try:
        return state_digest(initial.read(file, file.name))
    except ConfigurationError:
        return None


def _put(source: Path, target: Path) -> None:
    """Under its final name only when it is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with temporary.folder(target.parent) as new:
        partial = new / target.name
        try:
            os.link(source, partial)
        except OSError:  # another file system, or one without links
            shutil.copyfile(source, partial)
        partial.replace(target)
