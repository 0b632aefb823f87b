"""The parts that must be the same on every node: the project's files, its data, this package, what computes.

The project's code is what git tracks or would track there; without git, every file outside `IGNORED`. The declared inputs
are compared by DVC's md5 and are no code. Versions are of what changes bits. Standard library and git; no Ray.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.data.files.places import files_below
from orchestrator.provenance.code.git import known_files
from orchestrator.provenance.data import hashing
from orchestrator.provenance.environment import libraries, packages

_CACHES = (".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "__pycache__")
IGNORED = frozenset({".orchestrator", ".git", ".dvc", ".venv", "venv", *_CACHES})
_LIBRARIES = ("numpy", "ray", "torch")


@dataclass(frozen=True)
class Tree:
    """The parts of a node that must be the same on every node. files: path -> SHA-256, None where there is no such
    folder; inputs: path -> md5, None for one that is not there; package: SHA-256 of this package's source; versions: of Python
    and of the libraries that compute."""

    files: Mapping[str, str] | None
    inputs: Mapping[str, str | None]
    package: str
    versions: Mapping[str, str]
    # what the user there may not read of the project or its data, such as a home folder; nothing else of them is known then
    unreadable: str | None = None


def capture(project: Path, inputs: Iterable[str], *, git: bool = True) -> Tree:
    """The tree as it is on this machine. git: False for a copy, which holds nothing but what was packed. Raises
    PermissionError."""
    names = list(inputs)
    found = {name: hashing.scan(project / name).md5 if (project / name).exists() else None for name in names}
    files = (
        {name: libraries.sha256(project / name) for name in listing(project, names, git=git)}
        if project.is_dir()
        else None
    )
    return Tree(files, found, packages.own_sha256(), _versions())


def closed(path: str) -> Tree:
    """The tree of a node whose user may not read this path of the project."""
    return Tree(None, {}, packages.own_sha256(), _versions(), path)


def listing(project: Path, inputs: Iterable[str], *, git: bool = True) -> list[str]:
    """The files of the project's code, relative to it and sorted."""
    known = known_files(project) if git else None
    names = sorted(_walk(project)) if known is None else known
    read = [Path(name).parts for name in inputs]
    return [name for name in names if _is_code(project, name, read)]


def differences(expected: Tree, tree: Tree) -> list[str]:
    """The parts of the project and its data that are not as expected, one phrase for each path."""
    if tree.unreadable is not None:
        return [f"{tree.unreadable} may not be read by the user there"]
    if tree.files is None:
        return ["the folder is missing"]
    assert expected.files is not None
    return [*_differing(expected.files, tree.files), *_differing(expected.inputs, tree.inputs)]


def foreign(expected: Tree, tree: Tree) -> list[str]:
    """The parts that cannot be carried and are not as expected: this package and the libraries."""
    different = [
        f"{name} is {tree.versions.get(name, 'missing')} instead of {version}"
        for name, version in expected.versions.items()
        if tree.versions.get(name) != version
    ]
    return different + (["the source of orchestrator differs"] if expected.package != tree.package else [])


def holds_package(project: Path) -> bool:
    """Whether this package lies in the project, and so is carried with it."""
    return packages.PACKAGE.is_relative_to(project.resolve())


def packed_bytes(project: Path, inputs: Iterable[str]) -> int:
    """The size of what `pack` writes, nearly."""
    return sum((project / name).stat().st_size for name in _packed(project, inputs))


def pack(project: Path, inputs: Iterable[str], target: Path) -> None:
    """Write code and inputs as a zip file, the same bytes for the same content. Inputs lie inside the project."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name in _packed(project, inputs):
            entry = zipfile.ZipInfo(name)
            entry.external_attr = ((project / name).stat().st_mode & 0o755 | 0o600) << 16
            with (project / name).open("rb") as source, archive.open(entry, "w", force_zip64=True) as packed:
                while piece := source.read(2**20):
                    packed.write(piece)


def outside(project: Path, inputs: Iterable[str]) -> list[str]:
    """The inputs that do not lie inside the project."""
    return [name for name in inputs if not Path(os.path.normpath(project / name)).is_relative_to(project)]


def _packed(project: Path, inputs: Iterable[str]) -> list[str]:
    names = list(inputs)
    found = set(listing(project, names))
    for name in names:
        place = project / name
        files = [place] if place.is_file() else files_below(place)
        found |= {Path(os.path.normpath(file)).relative_to(project).as_posix() for file in files}
    return sorted(found)


def _walk(project: Path) -> Iterator[str]:
    for folder, below, files in os.walk(project):
        below[:] = [name for name in below if name not in IGNORED]
        yield from ((Path(folder) / name).relative_to(project).as_posix() for name in files)


def _is_code(project: Path, name: str, inputs: list[tuple[str, ...]]) -> bool:
    parts = Path(name).parts
    if IGNORED & set(parts) or any(parts[: len(path)] == path for path in inputs):
        return False
    return (project / name).is_file()


def _differing(expected: Mapping[str, str | None], actual: Mapping[str, str | None]) -> list[str]:
    phrases = []
    for name in sorted({*expected, *actual}):
        if expected.get(name) != actual.get(name):
            what = "is missing" if actual.get(name) is None else "differs" if name in expected else "is extra"
            phrases.append(f"{name} {what}")
    return phrases


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in _LIBRARIES}}
