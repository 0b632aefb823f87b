"""The md5 of what lies at a path, as DVC computes it, from the bytes that are there: `dvc status` trusts size and time.

A folder's is the md5 of the sorted list of its files, with `.dir` behind it; `.dvcignore` is obeyed. A symbolic link is
followed, to folders too, which DVC does not: what lies behind it then counts as unknown to DVC, as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.data.files.places import out_of_reach, turns_back
from orchestrator.provenance.data import dvc_files
from orchestrator.provenance.data.dvc_files import LEGACY, MD5

_NO_DATA = frozenset({".git", ".hg", ".dvc", ".orchestrator"})  # what git, DVC and this program keep among the files
_POINTER, _POINTER_BYTES = b"version https://git-lfs.github.com/spec/v1\noid ", range(100, 200)  # of git-lfs


@dataclass(frozen=True)
class Scan:
    """The content of a path."""

    entries: Mapping[str, str]  # relative path -> md5, of a file "" -> md5
    size: int  # in bytes
    is_file: bool  # else it is a folder
    ignored: int = 0  # how many files `.dvcignore` leaves out
    # of each entry, a number that stands for the file and its last change; empty where the content is only told
    stamps: Mapping[str, int] = field(default_factory=dict, compare=False)
    # the entries that are pointers of git-lfs, whose content is elsewhere
    pointers: tuple[str, ...] = field(default=(), compare=False)
    # relative paths of the folders that hold nothing, which are no part of the hash
    empty: tuple[str, ...] = field(default=(), compare=False)

    @property
    def md5(self) -> str:
        return self.entries[""] if self.is_file else md5_of_entries(self.entries)

    def keeps(self, before: Scan) -> bool:
        """Whether all that was there before has the same bytes; there may be further files."""
        return before.entries.items() <= self.entries.items()

    def below(self, part: str) -> str | None:
        """The md5 of a file or folder inside, as DVC would compute it; None when there is none."""
        if part in ("", "."):
            return self.md5
        if part in self.entries:
            return self.entries[part]
        entries = below(self.entries, part)
        return md5_of_entries(entries) if entries else None


def scan(path: Path, ignore: dvc_files.Ignore | None = None, *, kind: str = MD5) -> Scan:
    """Hash everything at `path`. Raises OSError, such as for a folder below that this user may not read."""
    status = path.stat()
    if stat.S_ISREG(status.st_mode):
        pointers = ("",) if _is_pointer(path, status) else ()
        return Scan(
            {"": _md5_of_file(path, kind)}, status.st_size, True, stamps={"": _stamp(status)}, pointers=pointers
        )
    entries, stamps, size, seen, pointing = {}, {}, 0, 0, []
    empty: list[str] = []
    for file, found in _walk(path, ignore, empty):
        name = file.relative_to(path).as_posix()
        stamps[name] = _stamp(found)  # before it is read
        entries[name] = _md5_of_file(file, kind)
        size += found.st_size
        if _is_pointer(file, found):
            pointing.append(name)
    if ignore is not None:
        seen = sum(1 for _ in _walk(path, None))
    ignored = max(0, seen - len(entries))
    return Scan(entries, size, False, ignored, stamps, tuple(pointing), tuple(sorted(empty)))


def scan_input(project: Path, path: str, kind: str = MD5) -> Scan:
    """Hash as DVC does, what its ignore files leave out left out."""
    place = _place(project, path)
    return scan(place, dvc_files.ignore(project, place), kind=kind)


def scanned_again(project: Path, path: str, before: Scan, *, grows: bool = False) -> Scan | None:
    """The scan of an input that has the same bytes as before; None if it has others. Only files that were written since, or
    put in the place of others, are read. grows: whether there may be further files."""
    place = _place(project, path)
    try:
        if place.is_file():
            found = {"": place.stat()}
        else:
            ignore = dvc_files.ignore(project, place)
            found = {file.relative_to(place).as_posix(): status for file, status in _walk(place, ignore)}
        if grows:
            found = {name: status for name, status in found.items() if name in before.entries}
        if found.keys() != before.entries.keys():
            return None
        stamps = {name: _stamp(status) for name, status in found.items()}
        written = [name for name, stamp in stamps.items() if stamp != before.stamps.get(name)]
        if any(_md5_of_file(place / name if name else place) != before.entries[name] for name in written):
            return None
    except OSError:  # a file is gone, or out of reach
        return None
    return replace(before, stamps=stamps)


def md5_of_entries(entries: Mapping[str, str]) -> str:
    listed = [{"md5": md5, "relpath": name} for name, md5 in sorted(entries.items())]
    return hashlib.md5(json.dumps(listed, sort_keys=True).encode(), usedforsecurity=False).hexdigest() + ".dir"


EMPTY = md5_of_entries({})  # of a folder without files


def below(entries: Mapping[str, str], folder: str) -> dict[str, str]:
    """The entries of a folder inside, relative to it."""
    return {name[len(folder) + 1 :]: md5 for name, md5 in entries.items() if name.startswith(f"{folder}/")}


def is_in(path: str, folder: str) -> bool:
    return path == folder or Path(os.path.relpath(path, folder)).parts[:1] != (os.pardir,)


def _place(project: Path, path: str) -> Path:
    return Path(os.path.normpath((project / path).absolute()))


def _stamp(status: os.stat_result) -> int:
    """One number, as there may be a million files."""
    return hash((status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns))


def _walk(
    path: Path, ignore: dvc_files.Ignore | None, empty: list[str] | None = None
) -> Iterator[tuple[Path, os.stat_result]]:
    """The files at `path`, links followed; a link to a folder that it lies in is not entered again. empty: gets the folders
    below that hold nothing, relative to it. Raises OSError."""
    for folder, below, files in os.walk(path, onerror=out_of_reach, followlinks=True):
        if ignore is not None:
            below[:], files = ignore(folder, below, files)
        below[:] = [name for name in below if name not in _NO_DATA and not turns_back(path, Path(folder, name))]
        if empty is not None and not below and not files and Path(folder) != path:
            empty.append(Path(folder).relative_to(path).as_posix())
        for name in (name for name in files if name not in _NO_DATA):
            file = Path(folder, name)
            if (found := _status(file)) is not None and stat.S_ISREG(found.st_mode):
                yield file, found


def _status(file: Path) -> os.stat_result | None:
    """None of a link that leads nowhere."""
    try:
        return file.stat()
    except FileNotFoundError:
        return None


def _is_pointer(path: Path, status: os.stat_result) -> bool:
    if status.st_size not in _POINTER_BYTES:  # few files are read twice
        return False
    with path.open("rb") as file:
        return file.read(len(_POINTER)) == _POINTER


def _md5_of_file(path: Path, kind: str = MD5) -> str:
    if kind == LEGACY:
        return _legacy_md5(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _legacy_md5(path: Path) -> str:
    """DVC 2's: a text, by a look at its first 512 bytes, with CR LF made LF in each piece of 2**20 bytes."""
    with dvc_files.insides(), path.open("rb") as file:
        from dvc_data.hashfile.hash import fobj_md5

        return str(fobj_md5(file, name=LEGACY))
