"""Files of JSON lines with two verbs, append and read.

A line is on its way to the disk when `append` returns; a crash can tear only the last line, which `read` leaves out and the
next writer cuts off.
Source: optuna's journal storage.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any


class LineFile:
    """Appends to one file; the caller is its only writer."""

    def __init__(self, path: Path) -> None:
        if path.exists():
            _cut_torn_line(path)
        self._file = path.open("a", encoding="utf-8")

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        self._file.write("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        self._file.flush()

    def sync(self) -> None:
        """Wait until what was appended is on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of the file, in order."""
    with path.open("rb") as file:  # a torn line may end within a character
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)


def cut(path: Path, lines: int) -> list[dict[str, Any]]:
    """Leave only the first `lines` lines in the file; returns the whole ones that were behind them."""
    found = list(read(path))
    end = 0
    with path.open("r+b") as file:
        for _ in range(min(lines, len(found))):
            end += len(file.readline())
        file.truncate(end)
    return found[lines:]


def _cut_torn_line(path: Path) -> None:
    with path.open("r+b") as file:
        whole = 0
        for line in file:
            whole += len(line) if line.endswith(b"\n") else 0
        file.truncate(whole)
