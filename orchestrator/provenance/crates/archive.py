"""The files of a crate, as a folder or as one zip: written in a fixed order with fixed dates, unpacked with suspicion.

The sender of a crate may have written its zip by hand. So every name is judged before a byte is written: no absolute path, no
`..`, no link, nothing twice, no file that is a folder too. The number and the sum of the sizes are bounded, and a file that
turns out longer than it says ends the unpacking. This module knows nothing of what the files mean. Source: the zip slip and
zip bomb classes of errors (CWE-22, CWE-409).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from orchestrator.errors import NotRerunnable

MOST_FILES = 200_000
MOST_BYTES = 1 << 40
_PIECE_BYTES = 1 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first date that a zip can hold
_JOINERS = "\u200c\u200d"  # of letters, in names in Persian and Hindi
_PLAIN, _FOLDER = stat.S_IFREG | 0o644, stat.S_IFDIR | 0o755
_PACKED = (  # do not get smaller
    *(".bundle", ".gz", ".npz", ".parquet", ".png", ".jpg", ".jpeg", ".safetensors", ".zip", ".zst"),
)
# The last one: a name that is not UTF-8, though its zip says so.
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, UnicodeDecodeError)
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others are not written, and fail in ways of their own
REMEDY = "ask for the crate again: export=RUN_ID to=PATH makes it"

Content = bytes | Path
Opener = Callable[[], IO[bytes]]


@dataclass(frozen=True)
class Member:
    """A file in an archive. size: as the archive says it."""

    name: str
    size: int
    open: Opener


def write(files: Mapping[str, Content], target: Path) -> None:
    """Make `target`, a zip if it ends with .zip, else a folder; it must not exist, and exists only when it is whole. Raises
    OSError."""
    partial = target.with_name(f".{target.name}.unfinished")
    _remove(partial)
    try:
        if is_zip(target):
            with zipfile.ZipFile(partial, "x") as archive:
                for name in sorted({*files, *_folders(files)}):
                    if name in files:
                        _add(archive, name, files[name])
                    else:
                        _add_folder(archive, name)
        else:
            for name in sorted(files):
                place = partial / name
                place.parent.mkdir(parents=True, exist_ok=True)
                with place.open("xb") as file:
                    _copy(files[name], file)
        partial.rename(target)
    finally:
        _remove(partial)


def is_zip(path: Path) -> bool:
    return path.name.lower().endswith(".zip")


def unpack(path: Path, place: Path) -> dict[str, str]:
    """Put every file of a crate into the new folder `place`; name -> SHA-256 of its bytes. Raises NotRerunnable for what
    cannot be read, and for what no crate holds; what was written before lies below `place`."""
    place.mkdir()
    try:
        if path.is_dir():
            return _unpack(_of_folder(path), path, place)
        with zipfile.ZipFile(path) as archive:
            return _unpack(_of_zip(archive, path), path, place)
    except (*_DAMAGED, NotImplementedError) as error:
        raise NotRerunnable(f"{path} is damaged: {error}", REMEDY, code="crate.damaged") from None
    except OSError as error:
        raise NotRerunnable(
            f"{path} cannot be unpacked: {error}", "see to the file, or to room on the disk", code="crate.not-unpacked"
        ) from None


def problem_of(names: list[str]) -> str | None:
    """Why files of these names are not written: one that leads elsewhere, or two in one place. Pure."""
    found: set[str] = set()
    for name in names:
        if not name or name != str(PurePosixPath(name)) or name == "." or "\\" in name or not all(map(_is_shown, name)):
            return f"the name {name!r} is no name of a file in a crate"
        if name.startswith("/") or ".." in name.split("/") or ":" in name.split("/")[0]:
            return f"the name {name!r} leads out of the crate"
        if name in found:
            return f"it holds {name!r} twice"
        found.add(name)
    folders = {str(parent) for name in names for parent in PurePosixPath(name).parents}
    both = sorted(found & folders)
    return f"{both[0]!r} is a file and a folder" if both else None


def _is_shown(character: str) -> bool:
    """Whether it may stand in a name: spaces of any width, too, as in names of screenshots and in Japanese."""
    return character.isprintable() or character in _JOINERS or unicodedata.category(character) == "Zs"


def _of_folder(top: Path) -> list[Member]:
    found = []
    for folder, below, files in os.walk(top):
        for name in sorted([*below, *files]):
            file = Path(folder, name)
            status = file.lstat()
            if stat.S_ISDIR(status.st_mode):
                continue
            if not stat.S_ISREG(status.st_mode):
                raise _hostile(top, f"{file.relative_to(top)} is a link, or no plain file")
            found.append(Member(file.relative_to(top).as_posix(), status.st_size, _opener(file)))
    return found


def _opener(file: Path) -> Opener:
    return lambda: os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb")


def _of_zip(archive: zipfile.ZipFile, path: Path) -> list[Member]:
    found = []
    for entry in archive.infolist():
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if entry.flag_bits & 0x1:
            raise _hostile(path, f"{entry.filename!r} is encrypted")
        if entry.compress_type not in _METHODS:
            raise _hostile(path, f"{entry.filename!r} is compressed by a method that export= does not use")
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise _hostile(path, f"{entry.filename!r} is a link, or no plain file")
        if entry.orig_filename != entry.filename:  # zipfile cuts a name at a NUL byte
            raise _hostile(path, f"the name {entry.orig_filename!r} is no name of a file in a crate")
        if not entry.is_dir():
            found.append(Member(entry.filename, entry.file_size, _zip_opener(archive, entry)))
        elif (problem := problem_of([entry.filename.removesuffix("/")])) is not None:
            raise _hostile(path, problem)
    return found


def _zip_opener(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Opener:
    return lambda: archive.open(entry)


def _unpack(members: list[Member], path: Path, place: Path) -> dict[str, str]:
    total = sum(member.size for member in members)
    free = shutil.disk_usage(place).free
    if len(members) > MOST_FILES or total > MOST_BYTES:
        raise _hostile(path, f"it unpacks to {len(members)} files of {total / 1e9:.1f} GB, more than a crate may hold")
    if total > free:
        raise NotRerunnable(
            f"{path} unpacks to {total / 1e9:.1f} GB, and there are {free / 1e9:.1f} GB left at {place}",
            "make room",
            code="crate.no-room",
        )
    if (problem := problem_of([member.name for member in members])) is not None:
        raise _hostile(path, problem)
    return {member.name: _write_out(member, path, place) for member in members}


def _write_out(member: Member, path: Path, place: Path) -> str:
    target = place / member.name
    target.parent.mkdir(parents=True, exist_ok=True)
    hashed, left = hashlib.sha256(), member.size
    try:
        with member.open() as source, target.open("xb") as file:
            for piece in _pieces(source):
                left -= len(piece)
                if left < 0:
                    raise _hostile(path, f"{member.name!r} is longer than it says")
                hashed.update(piece)
                file.write(piece)
    except _DAMAGED as error:
        raise NotRerunnable(f"{path} is damaged: {member.name}: {error}", REMEDY, code="crate.member-damaged") from None
    return hashed.hexdigest()


def _add(archive: zipfile.ZipFile, name: str, content: Content) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.create_system, entry.external_attr = 3, _PLAIN << 16
    entry.compress_type = zipfile.ZIP_STORED if name.endswith(_PACKED) else zipfile.ZIP_DEFLATED
    entry.file_size = len(content) if isinstance(content, bytes) else content.stat().st_size
    with archive.open(entry, "w", force_zip64=entry.file_size >= 1 << 31) as file:
        _copy(content, file)


def _add_folder(archive: zipfile.ZipFile, name: str) -> None:
    """Some who read a crate look for the folders that its metadata name, and not for what is in them."""
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.create_system, entry.external_attr = 3, _FOLDER << 16
    archive.writestr(entry, b"")


def _folders(names: Iterable[str]) -> set[str]:
    return {f"{parent}/" for name in names for parent in PurePosixPath(name).parents if parent.name}


def _copy(content: Content, file: IO[bytes]) -> None:
    if isinstance(content, bytes):
        file.write(content)
        return
    with content.open("rb") as source:
        shutil.copyfileobj(source, file, _PIECE_BYTES)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    return iter(lambda: file.read(_PIECE_BYTES), b"")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _hostile(path: Path, problem: str) -> NotRerunnable:
    return NotRerunnable(
        f"{path} is refused: {problem}", "take crates only from who made them with export=", code="crate.refused"
    )
