"""A JSON value per line; compressed by gzip where the name ends in .gz. Lines of white space are no samples."""

from __future__ import annotations

import gzip
import json
import mmap
from pathlib import Path
from typing import Any

_PIECE = 1 << 24  # bytes that are looked through at once
_WHITE = tuple(b" \t\r")


def jsonl(path: Path, name: str) -> _Lines:
    return _Lines(path, name)


class _Lines:
    def __init__(self, path: Path, name: str) -> None:
        import numpy

        if name.lower().endswith(".gz"):
            try:
                self._bytes: Any = gzip.decompress(path.read_bytes())
            except (EOFError, gzip.BadGzipFile) as error:
                raise ValueError(f"is no whole gzip file: {error}") from error
            self.held = len(self._bytes)
        else:
            self._bytes = _mapped(path)
            self.held = 0
        content = numpy.frombuffer(self._bytes, numpy.uint8)
        # A comparison takes as many bytes as it looks at.
        pieces = (content[at : at + _PIECE] for at in range(0, len(content), _PIECE))
        found = numpy.concatenate(
            [
                numpy.zeros(0, numpy.int64),
                *(numpy.flatnonzero(piece == ord("\n")) + number * _PIECE for number, piece in enumerate(pieces)),
            ]
        )
        ends = found if len(self._bytes) and self._bytes[-1:] == b"\n" else numpy.append(found, len(self._bytes))
        starts = numpy.concatenate(([0], ends[:-1] + 1))
        full = ends > starts
        for line in numpy.flatnonzero(full)[numpy.isin(content[starts[full]], _WHITE)]:
            full[line] = bool(self._bytes[starts[line] : ends[line]].strip())
        self._starts, self._ends = starts[full], ends[full]

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: int) -> Any:
        line = self._bytes[self._starts[number] : self._ends[number]]
        try:
            return json.loads(line)
        except ValueError as error:
            raise ValueError(f"has a line that is not JSON, sample {number}: {error}") from error

    def check(self) -> None:
        """Raises ValueError for a line that is not JSON."""
        for number in range(len(self)):
            self[number]

    def close(self) -> None:
        self._bytes = b""


def _mapped(path: Path) -> Any:
    with path.open("rb") as stream:
        empty = not path.stat().st_size
        return b"" if empty else mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
