"""`export=RUN_ID to=FOLDER|ZIP [data|checkpoints=true] [wheels=FOLDER] [key=PATH] [license=URL]`: a record as one crate; with
`steps=A-B to=FILE` instead some lines of its trace, with their Merkle path. With `model=true` it writes the
trained model alone, in the form of its own framework; with `to=FILE.ckpt`, as a checkpoint of Lightning.

Everything comes from the record, the data and the weights that the run began with from where a rerun takes them, hashed; the
project is only read. The same record makes the same bytes, so two exports can be compared.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from orchestrator.adapters.lightning import checkpoints
from orchestrator.checkpoint import catalog
from orchestrator.checkpoint.manifest import steps_among
from orchestrator.checkpoint.storage import open_storage
from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import CommandResult, reported
from orchestrator.common import temporary
from orchestrator.driver.folders import project_folder
from orchestrator.driver.preflight import initial, ownership
from orchestrator.driver.recording import artifacts
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.driver.terminal.progress import for_stream
from orchestrator.errors import CheckpointDamaged, ConfigurationError, NotRerunnable, PipelineRaised, UsageError
from orchestrator.experiments import trained
from orchestrator.experiments.rerun import rebuild
from orchestrator.provenance.code import checkout
from orchestrator.provenance.crates import archive, crate, statement
from orchestrator.provenance.crates.archive import Content
from orchestrator.provenance.data import hashing, restoring
from orchestrator.provenance.data.versions import Input
from orchestrator.provenance.environment import container, own_wheel, packages
from orchestrator.provenance.tracking import Past, Store
from orchestrator.records import excerpt, lines

_STEPS = re.compile(r"(\d{1,15})-(\d{1,15})")


@dataclass(frozen=True)
class Exported:
    """A run that was exported into a crate."""

    run_id: str  # of the run
    to: str  # folder or zip of the crate
    files: int  # number of files in it
    size: int  # of the zip, or of the folder's files, in bytes
    # path of an input -> "included", "code" (the snapshot holds it) or "referenced" (by its md5 and DVC's remotes)
    data: dict[str, str]
    # "included" or "missing", of the weights that the run began with; None where it began with none
    initial: str | None
    statement_sha256: str  # of the statement, which lists each file with its hash
    signed_by: str | None  # fingerprint of the key that signed; None where nobody did
    trace: str | None  # head of the Merkle tree of its trace; None where there is none
    checkpoints: int  # number of checkpoints that came along
    notes: list[str]  # for the user

    def as_dict(self) -> dict[str, Any]:
        values = {"size_bytes" if key == "size" else key: value for key, value in asdict(self).items()}
        return {**values, "status": "finished"}

    def as_text(self) -> str:
        signed = f"signed by {self.signed_by}" if self.signed_by else "not signed"
        return (
            f"run {self.run_id} is exported to {self.to}: {self.files} files, {self.size / 1e6:.1f} MB\n"
            f"  its statement has sha256 {self.statement_sha256}, {signed}\n"
            f"  its trace has the root {self.trace}\n"
            f"  python -m orchestrator rerun={self.to} trust=true repeats it"
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


def run(arguments: Arguments) -> CommandResult:
    to, with_data, steps = arguments.path("to"), arguments.flag("data"), arguments.get("steps")
    if to is None:
        raise UsageError("export needs a place: to=FOLDER or to=FILE.zip", code="export.needs-place")
    if steps is not None:
        if others := arguments.without("to", "steps", "output", "tracking.uri"):
            raise UsageError(
                f"steps= writes lines of the trace alone, without {' '.join(others)}",
                "leave that out",
                code="export.steps-alone",
            )
        return reported(_excerpt(arguments.value, steps, to, arguments.uri), arguments)
    if arguments.flag("model"):
        if others := arguments.without("to", "model", "trust", "output", "tracking.uri"):
            raise UsageError(
                f"model=true writes the trained model alone, without {' '.join(others)}",
                "leave that out",
                code="export.model-alone",
            )
        return reported(_trained(arguments.value, to, arguments.uri, trusted=arguments.flag("trust")), arguments)
    if to.suffix == checkpoints.ENDING:
        return reported(_checkpoint(arguments.value, to, arguments.uri), arguments)
    wanted = ExportRequest(
        *(
            to,
            with_data,
            arguments.path("key"),
            arguments.get("license"),
            arguments.path("wheels"),
            arguments.flag("checkpoints"),
        ),
        trusted=arguments.flag("trust"),
    )
    return reported(export(arguments.value, wanted, arguments.uri), arguments)


@dataclass(frozen=True)
class Excerpt:
    """Lines of a trace that were written into a file. begin, last: of the steps, inclusive."""

    run_id: str
    to: str
    begin: int
    last: int
    root: str

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "status": "finished"}

    def as_text(self) -> str:
        return (
            f"the steps {self.begin} to {self.last} of run {self.run_id} are in {self.to}, with their Merkle path\n"
            f"  python -m orchestrator verify={self.to} root={self.root}"
        )


def _excerpt(name: str, steps: str, to: Path, uri: str | None) -> Excerpt:
    """Raises UsageError, ConfigurationError and NotRerunnable."""
    found = _STEPS.fullmatch(steps)
    if found is None:
        raise UsageError(
            f"steps={steps}: expected the first and the last step, such as steps=100-199", code="export.steps"
        )
    begin, last = int(found[1]), int(found[2])
    _require_free(to)
    folder = project_folder(Path.cwd())
    original = Recorded.named(uri, folder, name)
    trace, first = lines.raw(original.files.trace) if original.files.trace.exists() else [], original.held.begin.step
    try:
        made = excerpt.make(original.past.run_id, trace, first, begin, last + 1)
    except ValueError:
        has = f"its trace has the steps {first} to {first + len(trace) - 1}" if trace else "it has no trace"
        raise UsageError(f"steps={steps}: {has}", code="export.steps-absent") from None
    _put(to, json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    return Excerpt(original.past.run_id, str(to), begin, last, made["root"])


@dataclass(frozen=True)
class Written:
    """A trained model that was written in the form of its own framework."""

    run_id: str
    to: str

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "status": "finished"}

    def as_text(self) -> str:
        return f"the model of run {self.run_id} is in {self.to}"


def _trained(name: str, to: Path, uri: str | None, *, trusted: bool) -> Written:
    """By the pipeline as it was recorded. Raises UsageError, PipelineRaised, ConfigurationError and NotRerunnable."""
    _require_free(to)
    folder = project_folder(Path.cwd())
    store = Store.with_run(uri, folder, name)
    original = Recorded.find(store, folder, name)
    run_id = original.past.run_id
    model = trained.load(original, store, trusted=trusted)
    if not model.has_form:
        raise UsageError(
            f"the pipeline of run {run_id} has no save(), so its model has no form but that of {original.files.model}",
            "write save(self, model, to) in the pipeline, or load it by mlflow.pyfunc.load_model",
            code="export.no-form",
        )
    model.save(to)
    return Written(run_id, str(to))


@dataclass(frozen=True)
class Checkpoint:
    """A trained model that was written as a checkpoint of Lightning."""

    run_id: str  # of the run
    to: str  # the file
    digest: str | None  # of the model

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "status": "finished"}

    def as_text(self) -> str:
        return f"the model of run {self.run_id} is in {self.to}\n  load_from_checkpoint of its module reads it"


def _checkpoint(name: str, to: Path, uri: str | None) -> Checkpoint:
    """Raises UsageError, ConfigurationError and NotRerunnable."""
    _require_free(to)
    folder = project_folder(Path.cwd())
    store = Store.with_run(uri, folder, name)
    original = Recorded.find(store, folder, name)
    run_id = original.past.run_id
    packages_there = original.environments[0].get("packages", {}) if original.environments else {}
    version = next((packages_there[each] for each in checkpoints.PACKAGES if each in packages_there), None)
    if version is None:
        raise UsageError(
            f"to={to}: Lightning was not among the packages of run {run_id}",
            f"its weights are {original.files.weights}, or leave the ending {checkpoints.ENDING} out for a crate",
            code="export.not-of-lightning",
        )
    file = artifacts.weights(store, original.past, original.files)
    source = original.held.pipeline
    weights = _whole(load_file(file), original.files.model)
    checkpoints.write(to, weights, source.args, original.past.steps or 0, version)
    return Checkpoint(run_id, str(to), original.past.best or original.past.digest)


def _whole(weights: dict[str, Tensor], place: Path) -> dict[str, Tensor]:
    """The weights under all of their names, of which tied tensors have several. If the project makes another model by now, as
    they were recorded: tied tensors once. place: of the logged model."""
    from orchestrator.worker.serving import served

    if not place.is_dir():
        return weights
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # how it answers does not count here
            model = served.load(place).get_raw_model()
    except (PipelineRaised, ConfigurationError):
        return weights
    return {name: each for name, each in model.state_dict().items() if isinstance(each, Tensor)}


def _put(to: Path, text: str) -> None:
    try:
        to.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            [f"to={to}: it cannot be written: {error.strerror}"], "name another place", code="export.unwritable"
        ) from error


def _require_free(to: Path) -> None:
    """Raises UsageError."""
    if to.exists():
        raise UsageError(f"to={to}: it exists", "name another place, or remove it", code="export.place-exists")
    if not to.absolute().parent.is_dir():
        raise UsageError(
            f"to={to}: there is no folder {to.absolute().parent}",
            "make it, or name another place",
            code="export.no-folder",
        )


def export(name: str, request: ExportRequest, uri: str | None) -> Exported:
    """Raises UsageError, ConfigurationError and NotRerunnable; then there is no crate."""
    _require_free(request.to)
    wheels = rebuild.wheels_in(request.wheels)
    signer = None if request.key is None else statement.signer(request.key)
    project = Path.cwd()
    folder = project_folder(project)
    store = Store.with_run(uri, folder, name)
    original = Recorded.find(store, folder, name)
    if original.past.status == "RUNNING":
        is_left = original.past.is_orphan and not original.files.is_driven
        raise UsageError(
            f"run {original.past.run_id} is not at its end",
            f"its driver is gone: go on with resume={original.past.run_id}, or have it marked as killed by: runs"
            if is_left
            else "wait for it, or end it",
            code="export.run-unfinished",
        )
    original.require()
    with original.readable():
        places = _places(original, request, folder)
    ownership.require_own_places(original.past, request.trusted, "export=", places)
    display = for_stream()
    with ExitStack() as open_files:
        files = _of_record(original, store, open_files)
        carried, data_kinds, notes = _data(original, project, folder, request, open_files)
        wheel, without = _own_wheel(original)
        files |= {**wheel, **_wheels(original, wheels)}
        notes += without
        weights, begins, without = _weights(original, store, folder, trusted=request.trusted)
        files |= weights
        notes += without
        checkpoints = _checkpoints(original, folder, open_files) if request.with_checkpoints else {}
        files |= checkpoints
        names: dict[str, str] = {}
        for path, (place, entries) in carried.items():
            names[path] = _name_of(path, len(names))
            files |= {f"{names[path]}/{entry}" if entry else names[path]: place / entry for entry in entries}
        _require_names(files)
        packed = crate.make(files, {**_run(original.past), **begins}, names, request.license, signer)
        size = _write(packed, request.to)
    for note in notes:
        display.say(f"note: {note}")
    initial_weights = None if original.initial.name is None else "included" if begins else "missing"
    sealed = (
        packed.statement_sha256,
        packed.signed_by,
        packed.trace,
        len(steps_among(Path(name).name for name in checkpoints)),
    )
    return Exported(
        original.past.run_id, str(request.to), len(packed.files), size, data_kinds, initial_weights, *sealed, notes
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


def _of_record(original: Recorded, store: Store, held: ExitStack) -> dict[str, Content]:
    """The files of the run's folder, the verdicts of its reruns, the list of packages."""
    files: dict[str, Content] = {f"{crate.RECORD}/{file.name}": file for file in original.files.artifacts()}
    place = held.enter_context(temporary.folder())
    run_id = original.past.run_id
    for again in store.folders(run_id, "reruns"):
        (place / again).mkdir()
        store.fetch(run_id, f"reruns/{again}", place / again)
        files |= {f"reruns/{again}/{file.name}": file for file in (place / again).iterdir()}
    files[crate.LOCK] = crate.lock(original.environments)
    return files


def _own_wheel(original: Recorded) -> tuple[dict[str, Content], list[str]]:
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


def _wheels(original: Recorded, folders: Sequence[Path]) -> dict[str, Content]:
    """Those of the folders that are of recorded packages in their recorded versions, for who has no index with them."""
    recorded = {name: version for node in original.environments for name, version in node.get("packages", {}).items()}
    found = {}
    for file in (file for folder in folders for file in sorted(folder.glob("*.whl"))):
        name, version = f"{file.stem}--".split("-")[:2]
        if recorded.get(packages.normalized(name)) == version:
            found[f"{container.WHEELS}/{file.name}"] = file
    return dict(found)


def _weights(
    original: Recorded, store: Store, folder: Path, *, trusted: bool
) -> tuple[dict[str, Content], dict[str, Any], list[str]]:
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


def _checkpoints(original: Recorded, folder: Path, held: ExitStack) -> dict[str, Content]:
    """Those that the run has kept, every byte verified: with them somebody else can audit it. Raises UsageError."""
    place = original.files.checkpoints_at(original.held.checkpoint.uri)
    new = held.enter_context(checkout.disposable_folder(folder / "worktrees")) / crate.CHECKPOINTS
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


Carried = dict[str, tuple[Path, list[str]]]


def _data(
    original: Recorded, project: Path, folder: Path, wanted: ExportRequest, held: ExitStack
) -> tuple[Carried, dict[str, str], list[str]]:
    """The inputs that travel along, with their place and their files; what becomes of each; notes. Restored as for a rerun, so
    that they are the recorded bytes."""
    kinds = {item.path: "code" if item.keeper == "code" else "referenced" for item in original.inputs}
    referenced = [item for item in original.inputs if kinds[item.path] == "referenced"]
    if not wanted.with_data:
        return {}, kinds, [_where(item) for item in referenced]
    if not referenced:
        return {}, kinds, []
    restored = held.enter_context(
        checkout.disposable(original.files.bundle, folder / "worktrees", original.code.get("tree"))
    )
    restoring.restore(restored.project, original.inputs, project, top=restored.root)
    carried: Carried = {}
    notes = []
    for item in referenced:
        place = restored.project / item.path
        if not place.resolve().is_relative_to(restored.root.resolve()):
            notes.append(f"{item.path} lies outside of the repository, where no rerun writes: it is not in the crate")
            continue
        carried[item.path] = (place, list(hashing.scan_input(restored.project, item.path).entries))
        kinds[item.path] = "included"
    return carried, kinds, notes


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


def _write(made: crate.Made, to: Path) -> int:
    """Raises ConfigurationError."""
    names = sorted(made.files)
    try:
        archive.write(made.files, to)
        return to.stat().st_size if to.is_file() else sum((to / name).stat().st_size for name in names)
    except OSError as error:
        raise ConfigurationError(
            [f"to={to}: it cannot be written: {error.strerror}"],
            "make room, or name another place",
            code="export.unwritable",
        ) from error
