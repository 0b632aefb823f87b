"""Files that a process makes once and later ones of this machine only read: in `__pycache__` beside the module that makes
them, and in the user's cache folder, where other checkouts find them. A reader has to make a file anew if it is not there."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from orchestrator.common import temporary

_DIGEST_BYTES = 32


def folders(module: str) -> Iterator[Path]:
    """The folders in which a file may lie, the preferred one first. module: `__file__` of the module that makes it."""
    yield Path(module).parent / "__pycache__"
    cache = os.environ.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError):  # nobody's home is known
        yield (Path(cache) if cache else Path.home() / ".cache") / "orchestrator"


def keep(places: Iterable[Path], name: str, data: bytes) -> None:
    """In each of these folders that takes it; none may."""
    for folder in places:
        with contextlib.suppress(OSError):
            _write(folder / name, hashlib.sha256(data).digest() + data)


def read(places: Iterable[Path], name: str) -> bytes | None:
    """The first that is whole of what these folders keep under the name; None where there is none."""
    for folder in places:
        with contextlib.suppress(OSError):
            kept = (folder / name).read_bytes()
            digest, data = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
            if hashlib.sha256(data).digest() == digest:
                return data
    return None


def _write(file: Path, data: bytes) -> None:
    """Whole or not at all. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with temporary.folder(file.parent) as place:
        unfinished = place / file.name
        unfinished.write_bytes(data)
        unfinished.replace(file)
