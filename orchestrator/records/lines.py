"""Files of JSON lines with two verbs, append and read.

A line is on its way to the disk when `append` returns, unless the disk is full; a crash can tear only the last line, which
`read` leaves out and the next writer cuts off.
Source: optuna's journal storage.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from orchestrator.records import bounded_json, redaction


class LineFile:
    """Appends to one file; the caller is its only writer. clean: changes every text of a line before that is JSON, of which it
    could take a quote along; trouble: why lines are missing in the file, or None; cuts: how often lines were taken back."""

    def __init__(self, path: Path, clean: Callable[[str], str] | None = None) -> None:
        if path.exists():
            _cut_torn_line(path)
        self.path = path
        self._clean = clean
        self.trouble: str | None = None
        self.cuts = 0
        self._missing = b""
        self._file = path.open("ab", buffering=0)

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Lines that a full disk does not take are kept, and tried again with the next ones. Half of a character, as Python
        reads it from a file's name that is not UTF-8, is written as JSON escapes it."""
        cleaned = (
            lines if self._clean is None else (redaction.over_texts(line, self._clean, keys=True) for line in lines)
        )
        written = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in cleaned)
        self._missing += written.encode(errors="backslashreplace")
        with contextlib.suppress(OSError):
            self._write()

    def keep(self, lines: int) -> None:
        """Leave only the first `lines` lines; of those that a full disk has not taken, too."""
        self.cuts += 1
        found = end = 0
        with self.path.open("rb") as file:  # of a long run it is not held
            for line in file:
                if found == lines:
                    break
                found, end = found + line.endswith(b"\n"), end + len(line)
        if found == lines:
            os.ftruncate(self._file.fileno(), end)
        self._missing = self._missing[: _end_of(self._missing, lines - found)]

    def sync(self) -> None:
        """Wait until what was appended is on the disk. Raises OSError when it cannot be."""
        self._write()
        os.fsync(self._file.fileno())

    @property
    def is_removed(self) -> bool:
        """Whether the file, which is written on, has its name no more."""
        try:
            return not os.path.samestat(self.path.stat(), os.fstat(self._file.fileno()))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # nobody can say now
            return False

    def restore(self) -> None:
        """Have what was removed again, with its folder. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(f"/proc/self/fd/{self._file.fileno()}", self.path)
        removed, self._file = self._file, self.path.open("ab", buffering=0)
        removed.close()

    def close(self) -> None:
        self._file.close()

    def _write(self) -> None:
        try:
            while self._missing:
                self._missing = self._missing[self._file.write(self._missing) :]
        except OSError as error:
            self.trouble = error.strerror
            raise
        self.trouble = None


def read(path: Path, holding: bytes = b"") -> Iterator[dict[str, Any]]:
    """The whole lines of the file, in order. holding: only those with these bytes, which is faster to see than to parse. Raises
    ValueError for one that is no JSON any more."""
    with path.open("rb") as file:  # a torn line may end within a character
        for number, line in enumerate(_bounded(file), 1):
            if holding in line and line.endswith(b"\n"):
                yield _parsed(line, number)


def _bounded(file: IO[bytes]) -> Iterator[bytes]:
    """Its lines. One without end, of somebody else, would take all memory. Raises ValueError."""
    for number in itertools.count(1):
        line = file.readline(bounded_json.MOST_BYTES)
        if len(line) == bounded_json.MOST_BYTES:
            raise ValueError(f"line {number} is longer than any that is written")
        if not line:
            return
        yield line


def written(path: Path) -> Iterator[dict[str, Any]]:
    """As `read`, and nothing where there is no such file."""
    if path.exists():
        yield from read(path)


def _parsed(line: bytes, number: int) -> dict[str, Any]:
    try:
        found: dict[str, Any] = bounded_json.parsed(line)
    except ValueError:
        raise ValueError(f"line {number} is not what was written") from None
    return found


def raw(path: Path) -> list[bytes]:
    """The whole lines of the file as they stand there, without their ends."""
    return list(each_raw(path))


def each_raw(path: Path) -> Iterator[bytes]:
    """The same, one after the other. Raises ValueError for one without end."""
    with path.open("rb") as file:
        yield from (line[:-1] for line in _bounded(file) if line.endswith(b"\n"))


def cut(path: Path, lines: int) -> list[dict[str, Any]]:
    """Leave only the first `lines` lines in the file; returns the whole ones that were behind them."""
    found = list(read(path))
    os.truncate(path, _end_of(path.read_bytes(), min(lines, len(found))))
    return found[lines:]


def _end_of(whole: bytes, lines: int) -> int:
    """The position at which the first `lines` lines end."""
    end = 0
    for _ in range(lines):
        end = whole.index(b"\n", end) + 1
    return end


def _cut_torn_line(path: Path) -> None:
    with path.open("r+b") as file:
        whole = 0
        for line in file:
            whole += len(line) if line.endswith(b"\n") else 0
        file.truncate(whole)
