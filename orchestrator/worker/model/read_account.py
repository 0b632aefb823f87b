"""The account of the bytes and of the files of a training set that a worker has read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from orchestrator.data.files import waiting
from orchestrator.data.files.waiting import NOTHING, BytesRead

_TOLD_EVERY_S = 1.0


class ReadAccount:
    """Counts the bytes and the files that a worker has read. emit: hears of the bytes that were read since it heard last, and
    of the files that were not read before, now and then; None while nobody listens, such as while a worker proves itself.
    lengths: samples of each file, None where there are none. Used by the compute thread."""

    def __init__(self, lengths: Sequence[int] | None = None) -> None:
        self.emit: Callable[[dict[str, Any]], None] | None = None
        self._ends = numpy.cumsum([] if lengths is None else lengths)
        self._untold: set[int] = set()
        self._known: set[int] = set()
        self._taken = NOTHING
        self._told = 0.0

    def add(self, indices: Sequence[int], fetched_ahead: int) -> None:
        """Count the samples of a micro-batch. indices: of the samples of a micro-batch."""
        if len(self._known) < len(self._ends):
            self._untold |= set(numpy.unique(self._ends.searchsorted(indices, "right")).tolist()) - self._known
            self._known |= self._untold
        new = waiting.take_counts()
        if new is not NOTHING or fetched_ahead:
            self._taken = BytesRead(self._taken.fetched + new.fetched + fetched_ahead, self._taken.cached + new.cached)
        if time.monotonic() - self._told >= _TOLD_EVERY_S:
            self.tell()

    def tell(self) -> None:
        if self.emit is None:
            return
        self._told = time.monotonic()
        if any(self._taken):
            self.emit({"event": "bytes_read", **self._taken._asdict()})
            self._taken = NOTHING
        if self._untold:
            self.emit({"event": "files_read", "numbers": sorted(self._untold), "of": len(self._ends)})
            self._untold.clear()
