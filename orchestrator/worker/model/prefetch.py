"""Which micro-batches a worker reads next, for a training set that fetches their files ahead (`Files.ahead`).

It looks a few micro-batches further with each one, until the share of the cache is full of their files: so the first steps are
not kept waiting for an outlook that reaches far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from orchestrator.data.loaders import Key, upcoming

_FURTHER, _FURTHEST = 4, 4096


class FilePrefetcher(Protocol):
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


class PrefetchWindow:
    """The micro-batches that a worker reads next. shards: those that are hosted; rounds: as of `upcoming`; indices: of a
    micro-batch."""

    def __init__(
        self,
        prefetcher: FilePrefetcher,
        shards: Sequence[int],
        rounds: range,
        indices: Callable[[int, int], Sequence[int]],
    ) -> None:
        self._prefetcher, self._shards, self._rounds, self._indices = prefetcher, tuple(shards), rounds, indices
        self._expected: deque[Key] = deque()
        self._known: dict[tuple[int, int], list[int]] = {}
        self._further: Iterator[Key] = iter(())
        prefetcher.forget()

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
        self._prefetcher.tell(len(self._shards))

    @property
    def _is_far_enough(self) -> bool:
        full = self._prefetcher.is_full and len(self._expected) >= len(self._shards)
        return full or len(self._expected) >= _FURTHEST

    def _begin_at(self, key: Key) -> None:
        self._prefetcher.forget()
        self._expected.clear()
        self._known.clear()
        self._expect(key)
        self._further = upcoming(key.step, key.shard, self._shards, self._rounds, self._indices)

    def _expect(self, key: Key) -> None:
        self._expected.append(key)
        self._known[key.step, key.shard] = list(key.indices)
        self._prefetcher.expect(key.indices)

    def _pass(self) -> None:
        passed = self._expected.popleft()
        del self._known[passed.step, passed.shard]
        self._prefetcher.passed()
