"""Fetching the files of the samples that will be asked for, in the order in which they will be (fetcher.py does it)."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from orchestrator.common.child import Started
from orchestrator.data.files import cache
from orchestrator.data.files.manifest import File
from orchestrator.data.files.places import Place

_FILES_AHEAD = 256  # of small files there are very many in a share, and each step goes through those that are expected


class FilePrefetcher:
    """The files of the samples that are expected, and the process that fetches them."""

    def __init__(
        self,
        place: Place,  # where the files lie
        files: Sequence[File],  # by number
        file_of: Callable[[int], int],  # the number of the file that holds a sample
        share: int,  # the bytes of the cache that may be expected at a time
        keep_only: Callable[[Iterable[int]], None],  # closes all files but these
    ) -> None:
        self._place, self._files, self._file_of, self._keep_only = place, files, file_of, keep_only
        self.share = share
        self._expected: deque[tuple[int, ...]] = deque()  # of each micro-batch its files, the next one first
        self._uses: Counter[int] = Counter()  # in the order in which they were expected first
        self._bytes = 0
        self._told: list[int] = []
        self._fetcher: _Fetcher | None = None

    @property
    def is_full(self) -> bool:
        return self._bytes >= self.share or len(self._uses) >= _FILES_AHEAD

    def expect(self, indices: Iterable[int]) -> None:
        """The samples of one more micro-batch."""
        numbers = tuple(dict.fromkeys(map(self._file_of, indices)))
        self._expected.append(numbers)
        for number in numbers:
            self._bytes += 0 if self._uses[number] else self._files[number].size
            self._uses[number] += 1

    def passed(self) -> None:
        """The first expected micro-batch has been read."""
        gone = []
        for number in self._expected.popleft():
            self._uses[number] -= 1
            if not self._uses[number]:
                del self._uses[number]
                self._bytes -= self._files[number].size
                gone.append(number)
        if gone:
            self._keep_only(self._uses)

    def forget(self) -> None:
        """Others will be asked for."""
        self._expected.clear()
        self._uses.clear()
        self._bytes = 0

    def tell(self, at_least: int) -> None:
        """Have those fetched that are expected, as far as the share goes; none, where that is not as far as so many
        micro-batches: what one fetches ahead would take the place of what another reads."""
        needed = {number for each in islice(self._expected, at_least) for number in each}
        wanted = self._within_share(max(len(needed), _FILES_AHEAD))
        if not needed.issubset(wanted):
            wanted = []
        if wanted != self._told:
            if self._fetcher is None:
                self._fetcher = _Fetcher(self._place.describe(""))
            self._fetcher.send([list(self._files[number]) for number in wanted])
            self._told = wanted

    def fetched(self) -> int:
        """Bytes since it was asked last."""
        return 0 if self._fetcher is None else self._fetcher.fetched()

    def close(self) -> None:
        """Safe to call twice."""
        if self._fetcher is not None:
            self._fetcher.close()
        self._fetcher, self._told = None, []

    def _within_share(self, most: int) -> list[int]:
        found, left = [], self.share
        for number in islice(self._uses, most):
            left -= self._files[number].size
            if left < 0:
                break
            found.append(number)
        return found


class _Fetcher:
    """The process, and the thread that reads what it says. One that dies is not replaced: nothing but time depends on it."""

    def __init__(self, place: str) -> None:
        self._child = Started("orchestrator.data.files.fetcher", apart=True)
        self._lock = threading.Lock()
        self._bytes = 0
        self.send({"place": place, "cache": cache.used()})
        threading.Thread(target=self._read, daemon=True, name="fetched").start()

    def send(self, message: object) -> None:
        """First the place and the cache, then files."""
        with contextlib.suppress(OSError):  # it has died
            self._child.messages.send(json.dumps(message).encode())

    def fetched(self) -> int:
        with self._lock:
            found, self._bytes = self._bytes, 0
        return found

    def close(self) -> None:
        self._child.kill()
        self._child.close()

    def _read(self) -> None:
        with contextlib.suppress(ValueError):  # closed
            while (fetched := self._child.messages.receive()) is not None:
                with self._lock:
                    self._bytes += int(fetched)


class SeveralPrefetchers:
    """Those of a data set that is made of others: each fetches its own files. parts: of each its prefetcher, and
    which of its samples those of the whole need."""

    def __init__(
        self,
        parts: Sequence[tuple[FilePrefetcher | SeveralPrefetchers, Callable[[Sequence[int]], list[int]]]],
        share: int,
    ) -> None:
        self._parts = parts
        self.share = share

    @property
    def share(self) -> int:
        return self._share

    @share.setter
    def share(self, share: int) -> None:
        self._share = share
        for ahead, _ in self._parts:
            ahead.share = share // len(self._parts)

    @property
    def is_full(self) -> bool:
        return any(ahead.is_full for ahead, _ in self._parts)

    def expect(self, indices: Sequence[int]) -> None:
        for ahead, own in self._parts:
            ahead.expect(own(indices))

    def passed(self) -> None:
        for ahead, _ in self._parts:
            ahead.passed()

    def forget(self) -> None:
        for ahead, _ in self._parts:
            ahead.forget()

    def tell(self, at_least: int) -> None:
        for ahead, _ in self._parts:
            ahead.tell(at_least)

    def fetched(self) -> int:
        return sum(ahead.fetched() for ahead, _ in self._parts)

    def close(self) -> None:
        for ahead, _ in self._parts:
            ahead.close()
