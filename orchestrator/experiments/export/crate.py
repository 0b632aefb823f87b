"""A whole record as one crate."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.checkpoint import catalog
from orchestrator.checkpoint.manifest import steps_among
from orchestrator.checkpoint.storage import open_storage
from orchestrator.common import temporary
from orchestrator.driver.folders import project_folder
from orchestrator.driver.preflight import initial, ownership
from orchestrator.driver.recording import unsent
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.driver.terminal.progress import for_stream
from orchestrator.errors import CheckpointDamaged, NotRerunnable, UsageError
from orchestrator.experiments.export.exported import Exported, require_free, writing
from orchestrator.experiments.rerun import rebuild
from orchestrator.optim.privacy import secret
from orchestrator.provenance.code import checkout
from orchestrator.provenance.crates import archive, crate, statement
from orchestrator.provenance.crates.archive import Content
from orchestrator.provenance.data import hashing, restoring
from orchestrator.provenance.data.versions import Input
from orchestrator.provenance.environment import container, own_wheel, packages
from orchestrator.provenance.tracking import Past, Store

Files = dict[str, Content]  # name in the crate -> content


@dataclass(frozen=True)
class ExportedCrate(Exported):
    """A run that was exported into a crate, which is a folder or a zip."""

    files: int  # number of files in it
    size_bytes: int  # of the zip, or of the folder's files
    # path of an input -> "included", "code" (the snapshot holds it) or "referenced" (by its md5 and DVC's remotes)
    data: dict[str, str]
    # "included" or "missing", of the weights that the run began with; None where it began with none
    initial: str | None
    statement_sha256: str  # of the statement, which lists each file with its hash
    signed_by: str | None  # fingerprint of the key that signed; None where nobody did
    trace: str | None  # head of the Merkle tree of its trace; None where there is none
    checkpoints: int  # number of checkpoints that came along
    notes: list[str]  # for the user

    def as_text(self) -> str:
        signed = f"signed by {self.signed_by}" if self.signed_by else "not signed"
        return (
            f"run {self.run_id} is exported to {self.to}: {self.files} files, {self.size_bytes / 1e6:.1f} MB\n"
            f"  its statement has sha256 {self.statement_sha256}, {signed}\n"
            f"  its trace has the root {self.trace}\n"
            f"  python -m orchestrator rerun={shlex.quote(self.to)} trust=true repeats it"
        )


@dataclass(frozen=True)
class ExportRequest:
    """The requests of the command."""

    to: Path  # folder or zip to be made
    with_data: bool  # whether the data themselves travel along
    key: Path | None  # file of the private key that signs; None for no signature
    license: str | None  # URL of it; None where none is named
    wheels: Path | None = None  # folder of which the wheels of recorded packages travel along; None for none
    with_checkpoints: bool = False  # whether those that the run has kept travel along
    trusted: bool = False  # whether places that a record of somebody else names may be opened


def export(name: str, request: ExportRequest, uri: str | None) -> ExportedCrate:
    """Raises UsageError, ConfigurationError and NotRerunnable; then there is no crate."""
    require_free(request.to)
    wheels = rebuild.wheels_in(request.wheels)
    signer = None if request.key is None else statement.signer(request.key)
    folder = project_folder(Path.cwd())
    display = for_stream()
    store = unsent.opened(uri, folder, name, display.say)
    original = Recorded.find(store, folder, name)
    _require_ended(original)
    original.require()
    with original.readable():
        places = _places(original, request, folder)
    ownership.require_own_places(original.past, request.trusted, "export=", places)
    with ExitStack() as held:
        files = _of_record(original, store, held)
        data = _data(original, folder, held, are_included=request.with_data)
        wheel, of_wheel = _own_wheel(original)
        weights, begins, of_weights = _initial_weights(original, store, folder, trusted=request.trusted)
        checkpoints = _checkpoints(original, folder, held) if request.with_checkpoints else {}
        files |= {**wheel, **_wheels(original, wheels), **weights, **checkpoints, **data.files}
        _require_names(files)
        packed = crate.make(files, {**_run(original.past), **begins}, data.names, request.license, signer)
        with writing(request.to, "make room, or name another place"):
            archive.write(packed.files, request.to)
            size_bytes = _size(request.to, packed.files)
    notes = [*data.notes, *of_wheel, *of_weights, *of_secret(original)]
    for note in notes:
        display.say(f"note: {note}")
    return ExportedCrate(
        original.past.run_id,
        str(request.to),
        files=len(packed.files),
        size_bytes=size_bytes,
        data=data.kinds,
        initial=None if original.initial.name is None else "included" if begins else "missing",
        statement_sha256=packed.statement_sha256,
        signed_by=packed.signed_by,
        trace=packed.trace,
        checkpoints=len(steps_among(Path(name).name for name in checkpoints)),
        notes=notes,
    )


def _require_ended(original: Recorded) -> None:
    """Raises UsageError, and NotRerunnable where no resume would go on with it."""
    run_id = original.past.run_id
    if original.past.status == "RUNNING":
        is_left = original.past.is_orphan and not original.files.is_driven
        if is_left:
            original.require_begun()
        raise UsageError(
            f"run {run_id} is not at its end",
            f"its driver is gone: go on with resume={run_id}, or have it marked as killed by: runs"
            if is_left
            else "wait for it, or end it",
            code="export.run-unfinished",
        )


def _places(original: Recorded, wanted: ExportRequest, folder: Path) -> dict[str, str]:
    """Outside of the record, that are opened for the crate."""
    held, found = original.held, {}
    if held.initial.name is not None and not initial.held_in(folder, held.initial.digest):
        found["the weights that it began with"] = held.initial.name
    if wanted.with_checkpoints:
        found["its checkpoints"] = original.files.checkpoints_at(held.checkpoint.uri)
    if wanted.with_data:
        found |= {f"its data {item.path}": _from(item) for item in original.inputs if item.keeper != "code"}
    return found


def _of_record(original: Recorded, store: Store, held: ExitStack) -> Files:
    """The files of the run's folder, the verdicts of its reruns, the list of packages."""
    files: Files = {f"{crate.RECORD}/{file.name}": file for file in original.files.artifacts()}
    place = held.enter_context(temporary.folder())
    run_id = original.past.run_id
    for again in store.folders(run_id, "reruns"):
        (place / again).mkdir()
        store.fetch(run_id, f"reruns/{again}", place / again)
        files |= {f"reruns/{again}/{file.name}": file for file in (place / again).iterdir()}
    files[crate.LOCK] = crate.lock(original.environments)
    return files


def _own_wheel(original: Recorded) -> tuple[Files, list[str]]:
    """This package as a wheel, where it is the one of the run: an image that is built from the crate has no other place to take
    it from. Otherwise a note."""
    node = original.environments[0]
    version, recorded = node.get("packages", {}).get("orchestrator"), node.get("bits", {}).get("orchestrator")
    name = own_wheel.name_of(version)
    if recorded == packages.own_sha256():
        return {f"{container.WHEELS}/{name}": own_wheel.content(version)}, []
    return {}, [
        f"the run was made by another orchestrator than this one, so no wheel of it is in the crate: its {container.FILE} "
        f"takes {name} from an index"
    ]


def _wheels(original: Recorded, folders: Sequence[Path]) -> Files:
    """Those of the folders that are of recorded packages in their recorded versions, for who has no index with them."""
    recorded = {name: version for node in original.environments for name, version in node.get("packages", {}).items()}
    found: Files = {}
    for file in (file for folder in folders for file in sorted(folder.glob("*.whl"))):
        name, version = f"{file.stem}--".split("-")[:2]
        if recorded.get(packages.normalized(name)) == version:
            found[f"{container.WHEELS}/{file.name}"] = file
    return found


def _initial_weights(
    original: Recorded, store: Store, folder: Path, *, trusted: bool
) -> tuple[Files, dict[str, Any], list[str]]:
    """The weights that the run began with, the crate's entries for them, and a note where they are gone. Only the run that made
    them could make them again. Raises Untrusted."""
    wanted = original.initial
    if wanted.name is None:
        return {}, {}, []
    try:
        initial.brought(wanted, store, folder, trusted=trusted)
    except NotRerunnable as error:
        lacking = f"the crate lacks the weights that the run began with, so nobody can repeat it: {error.message}"
        return {}, {}, [lacking]
    name = f"{crate.INITIAL}/{wanted.digest}.safetensors"
    begins = {"name": wanted.name, "digest": wanted.digest, "file": name}
    return {name: initial.place_of(folder, wanted.digest)}, {crate.INITIAL: begins}, []


def of_secret(original: Recorded) -> list[str]:
    """A note for whoever repeats a private run, which its crate alone does not allow."""
    if not original.is_private:
        return []
    return [
        "the noise of the run comes from a secret, which no crate holds: who repeats it gives its file, privacy.secret=PATH; "
        f"here it is {secret.place(original.held.privacy.secret)}, and who has it knows who took part"
    ]


def _checkpoints(original: Recorded, folder: Path, held: ExitStack) -> Files:
    """Those that the run has kept, every byte verified: with them somebody else can audit it. Raises UsageError."""
    place = original.files.checkpoints_at(original.held.checkpoint.uri)
    new = held.enter_context(checkout.disposable_folder(folder / checkout.FOLDER)) / crate.CHECKPOINTS
    try:
        storage, target = open_storage(place), open_storage(new)
        steps = [step for step in steps_among(storage.sizes()) if step > 0]
        for step in steps:
            catalog.carry(storage, target, step)
    except (CheckpointDamaged, OSError) as error:
        raise UsageError(
            f"checkpoints=true: those in {place} cannot be used: {error}",
            "see to them, or leave it out",
            code="export.checkpoints-unusable",
        ) from error
    if not steps:
        raise UsageError(f"checkpoints=true: there are none in {place}", "leave it out", code="export.no-checkpoints")
    return {f"{crate.CHECKPOINTS}/{file.name}": file for file in new.iterdir()}


@dataclass
class _Data:
    """The inputs of a run, as a crate has them."""

    kinds: dict[str, str]  # path of an input -> "included", "code" or "referenced"
    files: Files = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # path of an included input -> name of its file or folder
    notes: list[str] = field(default_factory=list)


def _data(original: Recorded, folder: Path, held: ExitStack, *, are_included: bool) -> _Data:
    """The inputs, which are restored as for a rerun where they travel along, so that they are the recorded bytes."""
    found = _Data({item.path: "code" if item.keeper == "code" else "referenced" for item in original.inputs})
    referenced = [item for item in original.inputs if found.kinds[item.path] == "referenced"]
    if not are_included:
        found.notes += map(_where, referenced)
        return found
    if not referenced:
        return found
    restored = held.enter_context(
        checkout.disposable(original.files.bundle, folder / checkout.FOLDER, original.code.get("tree"))
    )
    restoring.restore(restored.project, original.inputs, Path.cwd(), top=restored.root)
    for item in referenced:
        place = restored.project / item.path
        if not place.resolve().is_relative_to(restored.root.resolve()):
            found.notes.append(
                f"{item.path} lies outside of the repository, where no rerun writes: it is not in the crate"
            )
            continue
        name = _name_of(item.path, len(found.names))
        entries = hashing.scan_input(restored.project, item.path).entries
        found.files |= {f"{name}/{entry}" if entry else name: place / entry for entry in entries}
        found.names[item.path] = name
        found.kinds[item.path] = "included"
    return found


def _from(item: Input) -> str:
    """The source of an input's bytes."""
    imported = [f"{out.imported['url']} ({out.imported['path']})" for out in item.outs if out.imported is not None]
    return ", ".join([_remotes(item) or "where it was", *imported])


def _remotes(item: Input) -> str:
    return ", ".join(f"{name} ({url})" for name, url in (item.remotes or {}).items())


def _where(item: Input) -> str:
    """The place from which a rerun takes an input that does not travel along."""
    remotes = _remotes(item)
    kept = f"in DVC's remote {remotes}" if remotes else "only where it was, since there is no DVC remote"
    return f"{item.path} is named and not included: its bytes are kept {kept}; data=true includes them"


def _name_of(path: str, number: int) -> str:
    """The name of an input in the crate: its own path, where that is one."""
    name = f"{crate.DATA}/{path.removesuffix('/')}"
    return name if archive.problem_of([name]) is None else f"{crate.DATA}/input-{number}"


def _run(past: Past) -> dict[str, Any]:
    metrics = {name: value if math.isfinite(value) else str(value) for name, value in sorted(past.metrics.items())}
    return {**asdict(past), "metrics": metrics}


def _require_names(files: Iterable[str]) -> None:
    """Raises UsageError for what the data may be called, and nothing in a crate."""
    if (problem := archive.problem_of([*files])) is not None:
        raise UsageError(
            f"data=true: {problem}",
            "leave data=true out and hand the data over by DVC, or give that file another name and launch the run again",
            code="export.name",
        )


def _size(made: Path, names: Iterable[str]) -> int:
    """The bytes of the zip, or of the folder's files. names: of these."""
    return made.stat().st_size if made.is_file() else sum((made / name).stat().st_size for name in names)
