"""A crate made from a record, and one read back: nothing of it is believed before every byte is what its statement says.

It holds `record/` (the files of the run's folder), `reruns/` (verdicts), `run.json`, `requirements.txt`, `data/` if the data
travel along, and `initial/` with the weights that the run began with. `ro-crate-metadata.json` describes them, and the
statement covers all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import NotRerunnable, bulleted
from orchestrator.provenance.crates import archive, metadata, statement
from orchestrator.provenance.crates.archive import Content
from orchestrator.provenance.crates.statement import Signer
from orchestrator.records import bounded_json, lines, merkle

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

RECORD, RUN, LOCK, DATA, INITIAL = "record", "run.json", "requirements.txt", "data", "initial"
CHECKPOINTS = "checkpoints"
FORMAT = 3  # what older programs read is below; the claim of this one has the root of the trace
FORMATS = (1, 2, FORMAT)
_TRACE = f"{RECORD}/trace.jsonl"
_SHOWN = 10
_OWN = "orchestrator"


@dataclass(frozen=True)
class Made:
    """A crate that was made of a record. files: name -> content, of the whole crate; statement_sha256: one hash that stands
    for all of it; trace: the head of the Merkle tree of the run's trace."""

    files: Mapping[str, Content]
    statement_sha256: str
    signed_by: str | None
    trace: str | None


@dataclass(frozen=True)
class Crate:
    """A crate that was unpacked and checked."""

    place: Path  # its folder
    run: Mapping[str, Any]  # `run.json`
    carried: Mapping[str, Path]  # path of an input -> where its bytes are
    weights: Path | None  # the file of those that the run began with; None where they are not in it
    statement_sha256: str  # the hash that stands for all of it
    signed_by: str | None  # the fingerprint of the key; None of an unsigned one
    trace: str | None  # the head of the Merkle tree of its trace; None of an older format


def make(
    files: Mapping[str, Content],  # of the record, the data and the weights, by their names in the crate
    # what the store knows of the run, and under `initial` the `name`, `digest` and `file` of the weights that it began with
    run: Mapping[str, Any],
    carried: Mapping[str, str],  # path of an input -> the name of its file or folder
    license_: str | None = None,
    signed_by: Signer | None = None,
) -> Made:
    """Make a crate of a record."""
    content = {"format": FORMAT, **run, "carried": dict(carried)}
    code, data = (_json(files[f"{RECORD}/{name}.json"]) for name in ("code", "data"))
    own = {
        RUN: (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode(),
        metadata.README: metadata.readme(content),
    }
    whole: dict[str, Content] = {**files, **own}
    hashes = {name: _sha256(content) for name, content in whole.items()}
    sizes = {name: _size(content) for name, content in whole.items()}
    made_after = [statement.FILE, *([statement.PUBLIC_KEY] if signed_by else [])]
    described = metadata.Described(
        content, code.get("origin"), data.get("inputs", []), carried, sizes, hashes, license_
    )
    whole[metadata.FILE] = metadata.document(described, made_after)
    hashes[metadata.FILE] = _sha256(whole[metadata.FILE])
    trace = _head(files[_TRACE], FORMAT)
    payload = statement.payload(hashes, statement.predicate(content, code, data, hashes[LOCK], trace))
    whole[statement.FILE] = statement.envelope(payload, signed_by)
    if signed_by is not None:
        whole[statement.PUBLIC_KEY] = signed_by.public
    return Made(whole, statement.sha256(payload), None if signed_by is None else signed_by.name, trace)


def lock(environments: Iterable[Mapping[str, Any]]) -> bytes:
    """The packages of the nodes as pip reads them; what differs between nodes is a line each. Those that were installed from a
    folder of the repository are in its code, and others of folders are nowhere."""
    lines = set()
    for each in environments:
        for name, version in each.get("packages", {}).items():
            origin = each.get("origins", {}).get(name, {})
            if "commit" in origin:
                lines.add(f"{name} @ {origin.get('vcs') or 'git'}+{origin['url']}@{origin['commit']}")
            elif "path" not in origin or name == _OWN:
                lines.add(f"{name}=={version}")
    return "".join(f"{line}\n" for line in sorted(lines)).encode()


def is_crate(name: str) -> bool:
    """Whether `rerun=NAME` means a crate rather than a run's id, in which there is no dot and no slash."""
    return archive.is_zip(Path(name)) or "/" in name or (Path(name) / statement.FILE).is_file()


def read(path: Path, place: Path, trusted: Ed25519PublicKey | None = None) -> Crate:
    """Unpack a crate into the new folder `place` and check all of it; nothing of it is imported or run. trusted: the key that
    has to have signed it. Raises NotRerunnable, with every file that is not what was exported."""
    found = archive.unpack(path, place)
    said = statement.opened(place, trusted)
    generated = {statement.FILE, *([statement.PUBLIC_KEY] if said.signed_by else [])}
    problems = _problems({name: each for name, each in found.items() if name not in generated}, said.hashes, place)
    if problems:
        raise NotRerunnable(
            f"{path} is not what was exported:{bulleted(problems, _SHOWN)}", archive.REMEDY, code="crate.altered"
        )
    try:
        run = _json(place / RUN)
        code, data = (_json(place / RECORD / f"{name}.json") for name in ("code", "data"))
        if run["format"] not in FORMATS:
            raise NotRerunnable(
                f"{path} is a crate of format {run['format']}, and this program reads {', '.join(map(str, FORMATS))}",
                "update it",
                code="crate.format",
            )
        trace = _head(place / _TRACE, run["format"])
        claim = statement.predicate(run, code, data, found[LOCK], trace)
        carried = {str(item): place / _inside(name, DATA, path) for item, name in run["carried"].items()}
        weights = place / _inside(run[INITIAL]["file"], INITIAL, path) if INITIAL in run else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise NotRerunnable(
            f"{path} is no crate of export=: {error!r}", archive.REMEDY, code="crate.not-a-crate"
        ) from None
    if claim != said.claim:
        raise NotRerunnable(
            f"{path} is not what was exported:\n  - {statement.FILE}: it claims what its files do not hold",
            archive.REMEDY,
            code="crate.claims",
        )
    return Crate(place, run, carried, weights, statement.sha256(said.payload), said.signed_by, trace)


def _problems(found: Mapping[str, str], expected: Mapping[str, str], place: Path) -> list[str]:
    """The files that are not as the statement says. A file on which the metadata agree was not changed: the statement was."""
    listed = metadata.hashes_of(bounded_json.contents(place / metadata.FILE)) if metadata.FILE in found else {}
    problems = []
    for name in sorted({*found, *expected}):
        was, is_ = expected.get(name), found.get(name)
        if was is None:
            problems.append(f"{name}: it is in no statement, found sha256 {is_}")
        elif is_ is None:
            problems.append(f"{name}: expected sha256 {was}, and it is not there")
        elif was != is_:
            whose = f"{statement.FILE}, about {name}" if listed.get(name) == is_ else name
            problems.append(f"{whose}: expected sha256 {was}, found {is_}")
    return problems


def _inside(name: str, folder: str, path: Path) -> str:
    if archive.problem_of([name]) is not None or not name.startswith(f"{folder}/"):
        raise NotRerunnable(
            f"{path} is refused: it names {name!r} as what is in {folder}/", archive.REMEDY, code="crate.names"
        )
    return name


def _json(content: Content) -> dict[str, Any]:
    """Raises ValueError."""
    return dict(bounded_json.parsed(content) if isinstance(content, bytes) else bounded_json.read(content))


def _head(trace: Content, format_: int) -> str | None:
    """The root of the Merkle tree of a trace; None in a crate of an older format. Raises ValueError."""
    if format_ < FORMAT:
        return None
    whole = trace.split(b"\n")[:-1] if isinstance(trace, bytes) else lines.each_raw(trace)
    return merkle.head(map(_leaf, whole))


def _leaf(line: bytes) -> bytes:
    """Raises ValueError for what is no line of a trace, of which a crate could hold more than anybody has time to hash."""
    if not line.startswith(b"{"):
        raise ValueError("its trace has a line that is no step")
    return merkle.leaf(line)


def _sha256(content: Content) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(content: Content) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size
