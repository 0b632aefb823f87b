"""JSON of a record, which somebody else may have made: what it would take in memory is bounded before it is parsed.

A file of a few hundred kB in a zip can be gigabytes of `{},{},...`, of which each takes 24 times as much in memory. No file
of a launch comes near these bounds; the largest one is the list of 200000 files in a crate. Pure, but for reading.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

MOST_BYTES: Final = 1 << 28
_MOST_VALUES: Final = 1 << 23
_HARMLESS_BYTES: Final = 1 << 20


def parsed(text: bytes) -> Any:
    """Raises ValueError for what is too large, and for what is no JSON."""
    if len(text) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES >> 20} MiB")
    if len(text) > _HARMLESS_BYTES and sum(map(text.count, (b",", b"{", b"["))) > _MOST_VALUES:
        raise ValueError(f"it has more than {_MOST_VALUES} values")
    return json.loads(text.decode())


def read(path: Path) -> Any:
    """Raises OSError and ValueError."""
    return parsed(contents(path))


def contents(path: Path) -> bytes:
    """The bytes of a file that is to be parsed, at most one more than may be."""
    with path.open("rb") as file:
        return file.read(MOST_BYTES + 1)
