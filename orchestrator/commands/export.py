"""`export=RUN_ID to=FOLDER|ZIP [data=true] [wheels=FOLDER] [key=PATH] [license=URL]`: a record as one crate.

Everything comes from the record, the data and the weights that the run began with from where a rerun takes them, hashed; the
project is only read. The same record makes the same bytes, so two exports can be compared.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.commands.answer import Answer, reported
from orchestrator.commands.arguments import Arguments
from orchestrator.commands.rerun import rebuild
from orchestrator.driver.before_start import initial
from orchestrator.driver.folders import project_folder
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.driver.terminal.progress import for_stream
from orchestrator.errors import ConfigurationError, NotRerunnable, UsageError
from orchestrator.provenance.code import checkout
from orchestrator.provenance.crates import archive, crate, statement
from orchestrator.provenance.crates.archive import Content
from orchestrator.provenance.data import hashing, restoring
from orchestrator.provenance.data.versions import Input
from orchestrator.provenance.environment import container, own_wheel, packages
from orchestrator.tracking import Past, Store


@dataclass(frozen=True)
class Exported:
    """size: of the zip, or of the folder's files, in bytes; data: path of an input -> "included", "code" (the snapshot holds
    it) or "referenced" (its md5 and DVC's remotes are named); initial: "included" or "missing", of the weights that the run
    began with, None where it began with none."""

    run_id: str
    to: str
    files: int
    size: int
    data: dict[str, str]
    initial: str | None
    statement_sha256: str
    signed_by: str | None
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        told = {"size_bytes" if key == "size" else key: value for key, value in asdict(self).items()}
        return {**told, "status": "finished"}

    def as_text(self) -> str:
        signed = f"signed by {self.signed_by}" if self.signed_by else "not signed"
        return (
            f"run {self.run_id} is exported to {self.to}: {self.files} files, {self.size / 1e6:.1f} MB\n"
            f"  its statement has sha256 {self.statement_sha256}, {signed}\n"
            f"  python -m orchestrator rerun={self.to} trust=true repeats it"
        )


@dataclass(frozen=True)
class Wanted:
    """What is asked for. with_data: the data themselves, too; key: the private key that signs; license: a URL; wheels: a
    folder, of which the wheels of recorded packages travel along."""

    to: Path
    with_data: bool
    key: Path | None
    license: str | None
    wheels: Path | None = None


def run(given: Arguments) -> Answer:
    to, with_data = given.path("to"), given.flag("data")
    if to is None:
        raise UsageError("export needs a place: to=FOLDER or to=FILE.zip")
    wanted = Wanted(to, with_data, given.path("key"), given.get("license"), given.path("wheels"))
    return reported(export(given.value, wanted, given.uri), given)


def export(name: str, wanted: Wanted, uri: str | None) -> Exported:
    """Raises UsageError, ConfigurationError and NotRerunnable; then there is no crate."""
    if wanted.to.exists():
        raise UsageError(f"to={wanted.to}: it exists", "name another place, or remove it")
    if not wanted.to.absolute().parent.is_dir():
        raise UsageError(
            f"to={wanted.to}: there is no folder {wanted.to.absolute().parent}", "make it, or name another place"
        )
    given = rebuild.wheels_in(wanted.wheels)
    signer = None if wanted.key is None else statement.signer(wanted.key)
    project = Path.cwd()
    folder = project_folder(project)
    store = Store(uri, folder)
    original = Recorded.find(store, folder, name)
    if original.past.status == "RUNNING":
        raise UsageError(f"run {original.past.run_id} is not at its end", "wait for it, or end it")
    original.require()
    display = for_stream()
    with ExitStack() as held:
        files = _of_record(original, store, held)
        carried, told, notes = _data(original, project, folder, wanted, held)
        wheel, without = _own_wheel(original)
        files |= {**wheel, **_wheels(original, given)}
        notes += without
        weights, begins, without = _weights(original, store, folder)
        files |= weights
        notes += without
        names: dict[str, str] = {}
        for path, (place, entries) in carried.items():
            names[path] = _name_of(path, len(names))
            files |= {f"{names[path]}/{entry}" if entry else names[path]: place / entry for entry in entries}
        made = crate.make(files, {**_run(original.past), **begins}, names, wanted.license, signer)
        size = _write(made, wanted.to)
    for note in notes:
        display.say(f"note: {note}")
    came = None if original.initial.name is None else "included" if begins else "missing"
    sealed = made.statement_sha256, made.signed_by
    return Exported(original.past.run_id, str(wanted.to), len(made.files), size, told, came, *sealed, notes)


def _of_record(original: Recorded, store: Store, held: ExitStack) -> dict[str, Content]:
    """The files of the run's folder, the verdicts of its reruns, the list of packages."""
    files: dict[str, Content] = {f"{crate.RECORD}/{file.name}": file for file in original.files.artifacts()}
    place = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="orchestrator-")))
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


def _weights(original: Recorded, store: Store, folder: Path) -> tuple[dict[str, Content], dict[str, Any], list[str]]:
    """Those that the run began with, which nobody makes again without the run that made them; what the crate says of them; a
    note where they cannot be had any more."""
    wanted = original.initial
    if wanted.name is None:
        return {}, {}, []
    try:
        initial.brought(wanted, store, folder)
    except NotRerunnable as error:
        lacking = f"the crate lacks the weights that the run began with, so nobody can repeat it: {error.message}"
        return {}, {}, [lacking]
    name = f"{crate.INITIAL}/{wanted.digest}.safetensors"
    begins = {"name": wanted.name, "digest": wanted.digest, "file": name}
    return {name: initial.place_of(folder, wanted.digest)}, {crate.INITIAL: begins}, []


Carried = dict[str, tuple[Path, list[str]]]


def _data(
    original: Recorded, project: Path, folder: Path, wanted: Wanted, held: ExitStack
) -> tuple[Carried, dict[str, str], list[str]]:
    """The inputs that travel along, with their place and their files; what becomes of each; notes. Restored as for a rerun, so
    that they are the recorded bytes."""
    told = {item.path: "code" if item.keeper == "code" else "referenced" for item in original.inputs}
    referenced = [item for item in original.inputs if told[item.path] == "referenced"]
    if not wanted.with_data:
        return {}, told, [_where(item) for item in referenced]
    if not referenced:
        return {}, told, []
    restored = held.enter_context(checkout.disposable(original.files.bundle, folder / "worktrees"))
    restoring.restore(restored.project, original.inputs, project, top=restored.root)
    carried: Carried = {}
    notes = []
    for item in referenced:
        place = restored.project / item.path
        if not place.resolve().is_relative_to(restored.root.resolve()):
            notes.append(f"{item.path} lies outside of the repository, where no rerun writes: it is not in the crate")
            continue
        carried[item.path] = (place, list(hashing.scan_input(restored.project, item.path).entries))
        told[item.path] = "included"
    return carried, told, notes


def _where(item: Input) -> str:
    """Where a rerun takes an input from that does not travel along."""
    remotes = ", ".join(f"{name} ({url})" for name, url in (item.remotes or {}).items())
    kept = f"in DVC's remote {remotes}" if remotes else "only where it was, since there is no DVC remote"
    return f"{item.path} is named and not included: its bytes are kept {kept}; data=true includes them"


def _name_of(path: str, number: int) -> str:
    """The name of an input in the crate: its own path, where that is one."""
    name = f"{crate.DATA}/{path.removesuffix('/')}"
    return name if archive.problem_of([name]) is None else f"{crate.DATA}/input-{number}"


def _run(past: Past) -> dict[str, Any]:
    metrics = {name: value if math.isfinite(value) else str(value) for name, value in sorted(past.metrics.items())}
    return {**asdict(past), "metrics": metrics}


def _write(made: crate.Made, to: Path) -> int:
    names = sorted(made.files)
    problem = archive.problem_of(names)
    assert problem is None, problem
    try:
        archive.write(made.files, to)
        return to.stat().st_size if to.is_file() else sum((to / name).stat().st_size for name in names)
    except OSError as error:
        raise ConfigurationError(
            [f"to={to}: it cannot be written: {error.strerror}"], "make room, or name another place"
        ) from error
