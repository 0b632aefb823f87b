"""The state of another run that a run begins with: found among its checkpoints before anything is started, and kept.

It lies in `.orchestrator/begin/`, named by its digest, as a checkpoint of its own. So the run can be resumed and rerun when
the other one has no checkpoint any more. On one file system it is a link to the checkpoint of the other run. The digest
stands for the state wherever it comes from: a rerun may name another run that has it.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

from orchestrator.checkpoint import catalog
from orchestrator.checkpoint.manifest import Manifest, steps_among
from orchestrator.checkpoint.storage import Storage, open_storage
from orchestrator.comm.synchronization import SYNCHRONY, build_mode
from orchestrator.common import temporary
from orchestrator.config.plan import Begin
from orchestrator.config.settings import BeginSettings, Settings, flat, kept
from orchestrator.driver import copies
from orchestrator.driver.folders import RunFolder, project_folder
from orchestrator.driver.preflight import initial, ownership
from orchestrator.errors import CheckpointDamaged, ConfigurationError, NotRerunnable, UsageError, coded
from orchestrator.provenance.tracking import Past, Store

_FOLDER = "begin"
_SHAPING = ("optimizer.name", "contribution.", "compression.")  # settings that decide what a state consists of


def all_pinned(settings: Settings, project: Path, *, trusted: bool = False) -> Settings:
    """The settings with all that the run begins with pinned, the weights of `initial`, too. Raises as `pinned`."""
    return pinned(initial.pinned(settings, project, trusted=trusted), project, trusted=trusted)


def pinned(settings: Settings, project: Path, *, trusted: bool = False) -> Settings:
    """The settings with the run and the step that `begin` means, and the digest of its state, which is in the project's folder
    then; as they are where none is named. trusted: it may be the run of somebody else. Raises UsageError, ConfigurationError,
    Untrusted, and NotRerunnable where that state was recorded and is gone, or another one now."""
    wanted = settings.begin
    if wanted.name is None:
        return settings
    _refuse_free(settings)
    folder = project_folder(project)
    if held_in(folder, wanted.digest, wanted.step) is None:
        store = Store(settings.tracking.uri, folder)
        wanted = brought(wanted, store, folder, settings, trusted=trusted)
    found = dataclasses.replace(settings, begin=wanted)
    if settings.run.steps is not None and settings.run.steps <= wanted.step:
        raise ConfigurationError(
            [f"run.steps: {settings.run.steps} steps in all, and {wanted.name} has done {wanted.step} of them"],
            f"give the number of steps in all, such as run.steps={2 * wanted.step}",
            code="begin.no-steps-left",
        )
    return found


def place_of(folder: Path, digest: str | None) -> Path:
    """The folder of the state of this digest. folder: a project's `.orchestrator`."""
    return folder / _FOLDER / str(digest)


def held_in(folder: Path, digest: str | None, step: int) -> Manifest | None:
    """The checkpoint of this state in the folder; None where it is not there, or not whole."""
    place = place_of(folder, digest)
    if digest is None or not place.is_dir():
        return None
    try:
        storage = open_storage(place)
        manifest = catalog.read(storage, step)
        sizes = storage.sizes()
    except (CheckpointDamaged, OSError):
        return None
    whole = all(sizes.get(blob.name) == blob.size_bytes for blob in manifest.blobs)
    return manifest if whole and manifest.state_digest == digest else None


def brought(
    wanted: BeginSettings, store: Store, folder: Path, settings: Settings | None = None, *, trusted: bool = False
) -> BeginSettings:
    """`begin` pinned to a run, a step and a digest; the state is in the folder then. settings: of the run that begins with it,
    to see whether they go with it. Raises as `pinned`."""
    if wanted.name is None or held_in(folder, wanted.digest, wanted.step) is not None:
        return wanted
    run, _, where = wanted.name.partition("@")
    try:
        past = store.find(run)
        if past.kind != "run":
            raise UsageError(
                f"begin={wanted.name}: {past.run_id} is not a run: {past.kind}",
                "name one of its runs; list them with: runs",
                code="begin.not-a-run",
            )
        files = RunFolder(folder, past.run_id)
        copies.bring(store, past, files, "run", [files.settings])
        if not files.settings.exists():
            raise ConfigurationError(
                [
                    f"begin: run {past.run_id} ({past.status}) has its files where it was launched: MLflow has not got them"
                ],
                "type the command there, in the folder of its project, or begin with another run; list them with: runs",
                code="begin.elsewhere",
            )
        parent = kept.as_held(files.settings)
        place = files.checkpoints_at(parent.checkpoint.uri)
        ownership.require_own_places(past, trusted, "begin=", {"its checkpoints": place})
        found = _kept(past, where, place, folder, (parent, settings))
    except UsageError as error:
        if wanted.digest is None or isinstance(error, ownership.Untrusted):
            raise
        why = "; ".join(error.problems) if isinstance(error, ConfigurationError) else error.message
        raise NotRerunnable(
            f"{why}; the run began with the state of digest {wanted.digest}, which is not in "
            f"{place_of(folder, wanted.digest)} either",
            "name a run that has this state, such as a rerun of that one with checkpoint.archive: begin=RUN_ID@STEP",
            code="begin.state-missing",
        ) from error
    if wanted.digest not in (None, found.digest):
        raise NotRerunnable(
            f"begin: {found.name} has the state of digest {found.digest}, and the run began with {wanted.digest}",
            "name a run that has this state, such as a rerun of that one: begin=RUN_ID@STEP",
            code="begin.other-state",
        )
    return found


def lend(wanted: BeginSettings, folder: Path, project: Path) -> None:
    """Let another project, such as a work tree, have the state that this folder holds, if it does."""
    if held_in(folder, wanted.digest, wanted.step) is not None:
        target = place_of(project_folder(project), wanted.digest)
        target.mkdir(parents=True, exist_ok=True)
        catalog.carry(open_storage(place_of(folder, wanted.digest)), open_storage(target), wanted.step)


def put(begin: Begin, storage: str) -> None:
    """Have the state among the checkpoints of the run that begins with it. Raises CheckpointDamaged."""
    try:
        catalog.carry(open_storage(begin.folder), open_storage(storage), begin.step)
    except (CheckpointDamaged, OSError) as error:
        raise CheckpointDamaged(
            f"the state of {begin.name}, with which the run begins, cannot be brought to {storage}: {error}",
            f"see to that place; remove {begin.folder}, and the state is fetched again",
            code="begin.not-brought",
        ) from error


def _refuse_free(settings: Settings) -> None:
    """Refuse a mode that is not in lockstep, the user's own too. A mode that cannot be built is refused elsewhere."""
    sync = settings.sync
    if SYNCHRONY.problems(sync.name, sync.options) or build_mode(sync.name, sync.options).execution == "lockstep":
        return
    raise ConfigurationError(
        [f"begin: with sync={sync.name} a run is repeated by the order of all its updates, from its first one on"],
        "set sync=bsp, or begin with the weights alone: initial=runs:/RUN_ID",
        code="begin.free-replicas",
    )


def _kept(past: Past, where: str, place: str, folder: Path, whose: tuple[Settings, Settings | None]) -> BeginSettings:
    """Take the state of a run into the folder. place: of its checkpoints; whose: its settings, and those of the run that begins
    with it. Raises ConfigurationError."""
    parent, settings = whose
    try:
        storage = open_storage(place)
        step = _step(past, where, storage)
        manifest = catalog.read(storage, step)
        problems = list(_unfit(manifest, parent, settings)) if settings is not None else []
        if problems:
            raise ConfigurationError(problems, "leave them as they were, or begin with the weights alone: initial=")
        _take(storage, folder, manifest)
    except (CheckpointDamaged, OSError) as error:
        raise ConfigurationError(
            [f"begin: the checkpoint of run {past.run_id} in {place} cannot be used: {error}"],
            "name another step, as begin=RUN_ID@STEP",
            code="begin.checkpoint-unusable",
        ) from error
    return BeginSettings(name=f"{past.run_id}@{step}", digest=manifest.state_digest)


def _take(storage: Storage, folder: Path, manifest: Manifest) -> None:
    """Under its final name only when it is whole."""
    target = place_of(folder, manifest.state_digest)
    target.parent.mkdir(parents=True, exist_ok=True)
    with temporary.folder(target.parent) as new:
        whole = new / target.name
        whole.mkdir()
        catalog.carry(storage, open_storage(whole), manifest.step)
        if held_in(folder, target.name, manifest.step) is None:  # nobody else has just brought it
            shutil.rmtree(target, ignore_errors=True)
            whole.rename(target)


def _step(past: Past, where: str, storage: Storage) -> int:
    """Raises ConfigurationError."""
    steps = [step for step in steps_among(storage.sizes()) if step > 0]
    if not steps:
        raise ConfigurationError(
            [f"begin: run {past.run_id} has no checkpoint here any more"],
            f"make its states anew: rerun={past.run_id} checkpoint.archive=STEPS, and begin with what that run keeps",
            code="begin.none-left",
        )
    if where.isdigit() and int(where) not in steps:
        raise ConfigurationError(
            [
                f"begin: run {past.run_id} has no checkpoint of step {where}; it has {', '.join(map(str, reversed(steps)))}"
            ],
            f"name one of these; rerun={past.run_id} checkpoint.archive={where} makes it anew, in another run",
            code="begin.no-such-step",
        )
    if where == "best":
        return _best(past, storage, steps)
    return int(where) if where.isdigit() else steps[0]


def _best(past: Past, storage: Storage, steps: list[int]) -> int:
    """steps: of its checkpoints, newest first. Raises ConfigurationError."""
    found = catalog.read(storage, steps[0]).best
    if not found:
        raise ConfigurationError(
            [f"begin: run {past.run_id} kept no checkpoint as its best"],
            f"name a step, one of {', '.join(map(str, reversed(steps)))}; a run with checkpoint.best.metric keeps its best",
            code="begin.no-best",
        )
    return found[0]


def _unfit(manifest: Manifest, parent: Settings, settings: Settings) -> Iterator[str]:
    """A problem for each setting that does not go with this state."""
    before, after = flat(parent), flat(settings)
    for key in sorted({*before, *after}):
        if key.startswith(_SHAPING) and before.get(key) != after.get(key):
            yield coded(
                "begin.other-value",
                f"{key}: {after.get(key)} here, and {before.get(key)} in the run whose state it begins with",
            )
    rows = {int(name.split("/")[1]) for blob in manifest.blobs for name in blob.tensors if name.startswith("shard/")}
    if rows and len(rows) != settings.data.shards:
        yield coded(
            "begin.other-shards",
            f"data.shards: {settings.data.shards} here, and the state has what {len(rows)} shards keep",
        )
    if any(key == "free" for key, _ in manifest.values["run_state"]["dict"]):
        yield coded(
            "begin.other-sync",
            f"sync: {settings.sync.name} here, and {parent.sync.name} in the run whose state it begins with",
        )
