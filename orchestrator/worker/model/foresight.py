"""Which micro-batches a worker reads next, for a training set that fetches their files ahead (`Files.ahead`), and the account
of the bytes and of the files that were read.

It looks a few micro-batches further with each one, until the share of the cache is full of their files: so the first steps are
not kept waiting for an outlook that reaches far.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy

from orchestrator.data.files import waiting
from orchestrator.data.files.waiting import Taken
from orchestrator.data.loaders import Key, upcoming

_FURTHER, _FURTHEST = 4, 4096
_TOLD_EVERY_S = 1.0


class Ahead(Protocol):
    """As `Files.ahead` gives it."""

    share: int

    @property
    def is_full(self) -> bool: ...
    def expect(self, indices: Sequence[int]) -> None: ...
    def passed(self) -> None: ...
    def forget(self) -> None: ...
    def tell(self, at_least: int) -> None: ...
    def fetched(self) -> int: ...
    def close(self) -> None: ...


class Foresight:
    """shards: those that are hosted; rounds: as of `upcoming`; indices: of a micro-batch."""

    def __init__(
        self, ahead: Ahead, shards: Sequence[int], rounds: range, indices: Callable[[int, int], Sequence[int]]
    ) -> None:
        self._ahead, self._shards, self._rounds, self._indices = ahead, tuple(shards), rounds, indices
        self._expected: deque[Key] = deque()
        self._known: dict[tuple[int, int], list[int]] = {}
        self._further: Iterator[Key] = iter(())
        ahead.forget()

    def hosts(self, shard: int) -> bool:
        return shard in self._shards

    def known(self, step: int, shard: int) -> list[int] | None:
        """The samples of a micro-batch that is expected."""
        return self._known.get((step, shard))

    def reaches(self, key: Key) -> None:
        """This one is read now."""
        if (key.step, key.shard) in self._known:
            while self._expected[0][:2] != key[:2]:
                self._pass()
        else:
            self._begin_at(key)
        for _ in range(_FURTHER):
            following = None if self._is_far_enough else next(self._further, None)
            if following is not None:
                self._expect(following)
        self._ahead.tell(len(self._shards))

    @property
    def _is_far_enough(self) -> bool:
        full = self._ahead.is_full and len(self._expected) >= len(self._shards)
        return full or len(self._expected) >= _FURTHEST

    def _begin_at(self, key: Key) -> None:
        self._ahead.forget()
        self._expected.clear()
        self._known.clear()
        self._expect(key)
        self._further = upcoming(key.step, key.shard, self._shards, self._rounds, self._indices)

    def _expect(self, key: Key) -> None:
        self._expected.append(key)
        self._known[key.step, key.shard] = list(key.indices)
        self._ahead.expect(key.indices)

    def _pass(self) -> None:
        passed = self._expected.popleft()
        del self._known[passed.step, passed.shard]
        self._ahead.passed()


class Account:
    """emit: hears of the bytes that were read since it heard last, and of the files that were not read before, now and then;
    None while nobody listens, such as while a worker proves itself. lengths: samples of each file, None where there are none.
    Used by the compute thread."""

    def __init__(self, lengths: Sequence[int] | None = None) -> None:
        self.emit: Callable[[dict[str, Any]], None] | None = None
        self._ends = numpy.cumsum([] if lengths is None else lengths)
        self._untold: set[int] = set()
        self._known: set[int] = set()
        self._taken = Taken()
        self._told = 0.0

    def add(self, indices: Sequence[int], fetched_ahead: int) -> None:
        """indices: of the samples of a micro-batch."""
        if len(self._known) < len(self._ends):
            self._untold |= set(numpy.unique(self._ends.searchsorted(indices, "right")).tolist()) - self._known
            self._known |= self._untold
        new = waiting.take_counts()
        self._taken = Taken(self._taken.fetched + new.fetched + fetched_ahead, self._taken.cached + new.cached)
        if time.monotonic() - self._told >= _TOLD_EVERY_S:
            self.tell()

    def tell(self) -> None:
        if self.emit is None:
            return
        self._told = time.monotonic()
        if any(self._taken):
            self.emit({"event": "bytes_read", **self._taken._asdict()})
            self._taken = Taken()
        if self._untold:
            self.emit({"event": "files_read", "numbers": sorted(self._untold), "of": len(self._ends)})
            self._untold.clear()
