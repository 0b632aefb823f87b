"""The table of readers: the samples of one file.

A reader is a function `name(path: Path, name: str, *, option, ...)` of a file of this machine, and of what the manifest calls
it, that returns its samples as `Samples`. It raises ValueError, with what is wrong, for a file that it cannot read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from orchestrator.files.readers.arrow import arrow
from orchestrator.files.readers.jsonl import jsonl
from orchestrator.files.readers.parquet import parquet
from orchestrator.files.readers.tar import tar
from orchestrator.files.readers.whole import whole
from orchestrator.table import Table


class Samples(Protocol):
    """held: bytes of memory that it takes while it is open; 0 where it only maps its file."""

    held: int

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Any: ...

    def close(self) -> None: ...


READERS: Table[Callable[..., Samples]] = Table(
    "reader", {"jsonl": jsonl, "parquet": parquet, "arrow": arrow, "tar": tar, "whole": whole}, given=2
)
SUFFIXES = {".jsonl": "jsonl", ".jsonl.gz": "jsonl", ".parquet": "parquet", ".arrow": "arrow", ".tar": "tar"}


def by_name(path: Path) -> str | None:
    """The reader of files that are called so."""
    return next((reader for suffix, reader in SUFFIXES.items() if path.name.endswith(suffix)), None)
