"""The content of a run's files when a checkpoint was saved, as one hash of each: a resume from that checkpoint finds a bit
that has turned since.

    COUNT:SHA256      of the first lines of the file, of those that belong to the steps of the checkpoint

The journal has it with the checkpoint. Each line is read once in a run. Lines may come later than the checkpoint that they
belong to, so a seal says of how many it is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from orchestrator.records.lines import LineFile

Belongs = Callable[[Mapping[str, Any], int], bool]
_SEAL = re.compile(r"[0-9]+:[0-9a-f]{64}")


def of_trace(line: Mapping[str, Any], steps: int) -> bool:
    return bool(line["step"] < steps)


def of_barriers(barrier: Mapping[str, Any], steps: int) -> bool:
    return bool(barrier["steps"] <= steps)


class Seal:
    """The seal of one file, as it grows. belongs: whether a line is of the first so many steps."""

    def __init__(self, file: LineFile, belongs: Belongs) -> None:
        self._file = file
        self._belongs = belongs
        self._begin()

    def _begin(self) -> None:
        self._hashed, self._lines, self._read, self._cuts = hashlib.sha256(), 0, 0, self._file.cuts

    def of(self, steps: int) -> str:
        """Asked of no fewer steps than before; up to a line that is none, which its readers find. Raises OSError."""
        if self._file.cuts != self._cuts:
            self._begin()
        with self._file.path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not self._is_of(line, steps):
                    break
                self._hashed.update(line)
                self._lines += 1
                self._read += len(line)
        return _written(self._lines, self._hashed)

    def _is_of(self, line: bytes, steps: int) -> bool:
        try:
            return line.endswith(b"\n") and self._belongs(json.loads(line), steps)
        except (KeyError, TypeError, ValueError):
            return False


def is_seal(text: Any) -> bool:
    return isinstance(text, str) and _SEAL.fullmatch(text) is not None


def is_broken(path: Path, seal: str) -> bool:
    """Whether the first lines of the file are others than those of the seal; a file that is shorter is the matter of its
    readers. Raises OSError."""
    count, hashed, lines = int(seal.partition(":")[0]), hashlib.sha256(), 0
    with path.open("rb") as file:
        for line in islice(file, count):
            hashed.update(line)
            lines += 1
    return lines == count and _written(lines, hashed) != seal


def _written(lines: int, hashed: hashlib._Hash) -> str:
    return f"{lines}:{hashed.hexdigest()}"
