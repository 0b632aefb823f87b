"""`pipelines.stream` with all its documents in memory, for `benchmarks.streaming`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy

from orchestrator import Packed
from pipelines.stream import COUNTS, Stream, bytes_of


class InMemory(Stream):
    def _part(self, name: str) -> Packed:
        counts = numpy.load(COUNTS / f"{name}.npy")
        return Packed(Rows(Path(self.place) / name), self.window + 1, counts, bytes_of)


class Rows:
    def __init__(self, folder: Path) -> None:
        files = [path.read_text().splitlines() for path in sorted(folder.glob("*.jsonl"))]
        self.file_lengths: Sequence[int] = [len(file) for file in files]
        self._rows = [json.loads(row) for file in files for row in file]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Any:
        return self._rows[number]
