"""The ids that git gives to files and folders, computed from the bytes on disk.

A file's id is that of its bytes: no filter (line endings, clean and smudge, encodings) and no configuration comes between, so
equal work trees have equal ids wherever they lie. `git hash-object --no-filters` is no faster, follows links, and ends at the
first file that cannot be read; `git mktree` and `write-tree` write what they hash. Pure, apart from reading files. Paths are
bytes, relative, with `/`. As for git, of a file's mode only the owner's execute bit counts, and an empty folder is nothing.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

FILE, EXECUTABLE, LINK, REPOSITORY = "100644", "100755", "120000", "160000"


class Entry(NamedTuple):
    mode: str
    id: str


Entries = Mapping[bytes, Entry]


def at(root: Path, path: bytes) -> Path:
    """The place of an entry."""
    return root / os.fsdecode(path)


def entry(place: Path, algorithm: str) -> Entry | None:
    """The entry at `place`; None for what git does not keep (nothing, a folder, a pipe). Raises OSError when unreadable."""
    try:
        status = place.lstat()
        if stat.S_ISLNK(status.st_mode):
            return Entry(LINK, blob(content(place), algorithm))
        if not stat.S_ISREG(status.st_mode):
            return None
        mode = EXECUTABLE if status.st_mode & stat.S_IXUSR else FILE
        return Entry(mode, _blob_of_file(place, status.st_size, algorithm))
    except (FileNotFoundError, NotADirectoryError):
        return None


def content(place: Path) -> bytes:
    """The bytes that git keeps of a file or a link."""
    if place.is_symlink():
        return os.fsencode(os.readlink(place))  # noqa: PTH115 - Path.readlink() would tidy the text of the link
    return place.read_bytes()


def blob(data: bytes, algorithm: str) -> str:
    return hashlib.new(algorithm, b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def tree(entries: Entries, algorithm: str) -> str:
    """The id of the folder that holds `entries`."""
    root: _Folder = {}
    for path, found in entries.items():
        *folders, name = path.split(b"/")
        node = root
        for folder in folders:
            node = node.setdefault(folder, {})  # type: ignore[assignment]
        node[name] = found
    return _tree(root, algorithm)


def below(root: Path, algorithm: str) -> dict[bytes, Entry]:
    """Every file and link below `root`, apart from its own `.git`."""
    found = {}
    for place in _walk(root):
        file = entry(place, algorithm)
        if file is not None:
            found[os.fsencode(place.relative_to(root))] = file
    return found


def shown(path: bytes) -> str:
    """A path for people and for records: any bytes give valid text."""
    return path.decode("utf-8", "backslashreplace")


def free_of_links(root: Path, path: bytes, known: dict[bytes, bool]) -> bool:
    """Whether no folder on the way is a link: `a/b` is not in the tree when `a` is a link, though it can be opened.
    known: answers by folder, filled in."""
    folder = path.rpartition(b"/")[0]
    if not folder:
        return True
    if folder not in known:
        known[folder] = free_of_links(root, folder, known) and not at(root, folder).is_symlink()
    return known[folder]


_Folder = dict[bytes, "Entry | _Folder"]


def _tree(folder: _Folder, algorithm: str) -> str:
    rows = []
    for name, child in folder.items():
        if isinstance(child, Entry):
            rows.append((name, child.mode, child.id))
        else:
            rows.append((name + b"/", "40000", _tree(child, algorithm)))  # git sorts a folder as if it ended so
    body = b"".join(
        mode.encode() + b" " + name.removesuffix(b"/") + b"\0" + bytes.fromhex(id_) for name, mode, id_ in sorted(rows)
    )
    return hashlib.new(algorithm, b"tree %d\0" % len(body) + body, usedforsecurity=False).hexdigest()


def _blob_of_file(place: Path, size: int, algorithm: str) -> str:
    if size < 2**20:
        return blob(place.read_bytes(), algorithm)
    total = hashlib.new(algorithm, b"blob %d\0" % size, usedforsecurity=False)
    with place.open("rb") as file:
        while piece := file.read(2**20):
            total.update(piece)
    return total.hexdigest()


def _walk(root: Path) -> Iterator[Path]:
    for name, folders, files in os.walk(root):
        folder = Path(name)
        if folder == root:
            folders[:] = [inner for inner in folders if inner != ".git"]
        links = [inner for inner in folders if (folder / inner).is_symlink()]
        yield from (folder / file for file in [*links, *files] if folder != root or file != ".git")
