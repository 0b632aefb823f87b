"""Files of JSON lines with two verbs, append and read.

A line is on its way to the disk when `append` returns; a crash can tear only the last line, which `read` leaves out.
Source: optuna's journal storage.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any


class LineFile:
    """Appends to one file; the caller is its only writer."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        self._file.write("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of the file, in order."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)
