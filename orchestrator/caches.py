"""Files that a process makes once and later ones of this machine only read: in `__pycache__` beside the module that makes them,
or in the user's cache folder where that cannot be written. Who reads one has to make it anew when it is not there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

_DIGEST_BYTES = 32


def folders(module: str) -> Iterator[Path]:
    """Where a file may lie, the preferred one first. module: `__file__` of the module that makes it."""
    yield Path(module).parent / "__pycache__"
    cache = os.environ.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError):  # nobody's home is known
        yield (Path(cache) if cache else Path.home() / ".cache") / "orchestrator"


def keep(file: Path, data: bytes) -> None:
    """Whole or not at all, behind a digest. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, unfinished = tempfile.mkstemp(dir=file.parent, prefix=file.name)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(hashlib.sha256(data).digest() + data)
        Path(unfinished).replace(file)
    except OSError:
        Path(unfinished).unlink(missing_ok=True)
        raise


def read(file: Path) -> bytes:
    """What was kept. Raises OSError, and ValueError for a file that lost its end or was changed."""
    kept = file.read_bytes()
    digest, data = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
    if hashlib.sha256(data).digest() != digest:
        raise ValueError(f"{file} is damaged")
    return data
