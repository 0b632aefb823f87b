"""The sums of intervals of a member's time, window by window. Each lies between two stamps (`stamps.py`).

    span(steps, kind, step, shard, begin, end)   it did this
    micro_batch(which, begin, end)               it computed this one, or a part of it
    begins_at(steps, before)                     behind all that was entered before
    settle()                                     count what has become known, in the order in which it was entered
    close(computing)                             what was counted since the last call

On the host all is known as it is entered. On a card intervals become known later, and a window holds what was known when it was
closed: it ends where the last counted interval ends, and the next one begins there. So none is lost and none counts twice.

It does not decide what the member does at a moment (`time_account.py`).
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from time import time as wall_clock
from typing import Any, Final, NamedTuple

from orchestrator.records.times import KINDS
from orchestrator.worker.member.stamps import Stamps


class MicroBatch(NamedTuple):
    """A micro-batch, or several that are computed as one, which have no shard."""

    step: int | None
    shard: int | None
    together: int = 1


_SHORTEST_S: Final = 0.25  # of a window
_PART: Final = 0.01  # of the time that has passed
_MOST_MICRO_BATCHES: Final = 1000  # of a window, the last ones


class Ledger:
    """The ledger of one member, from its first generation on. steps: that are committed; spans_left: so many intervals are
    kept for a timeline."""

    def __init__(self, stamps: Stamps, steps: int, spans_left: int) -> None:
        self._stamps, self._between = stamps, stamps.between
        self.spans_left = spans_left
        self._pending: deque[tuple[Any, Any, Callable[..., None], tuple[Any, ...]]] = deque()
        self._steps = steps
        self._epoch = wall_clock()
        self._now = 0.0  # seconds from the first stamp to the last that was counted
        self._open()

    def span(self, steps: int, kind: int, step: int | None, shard: int | None, begin: Any, end: Any) -> None:
        """Count a span of time. steps: that are committed at its end."""
        self._count(begin, end, self._count_span, steps, kind, step, shard)

    def micro_batch(self, which: MicroBatch, begin: Any, end: Any) -> None:
        self._count(begin, end, self._count_micro_batch, which)

    def _count(self, begin: Any, end: Any, count: Callable[..., None], *what: Any) -> None:
        """At once where the seconds in between are known, or else when they are."""
        seconds = None if self._pending else self._between(begin, end)
        if seconds is None:
            self._pending.append((begin, end, count, what))
        else:
            count(seconds, *what)

    def begins_at(self, steps: int, before: int) -> None:
        """This member has a state of `steps` steps; those since `before` are not its own work."""
        if self._pending:
            self._pending.append((None, None, self._count_foreign, (steps, steps - before)))
        else:
            self._count_foreign(0.0, steps, steps - before)

    def settle(self) -> None:
        while self._pending:
            begin, end, count, what = self._pending[0]
            seconds = 0.0 if end is None else self._between(begin, end)
            if seconds is None:
                return
            self._pending.popleft()
            count(seconds, *what)

    def wait(self, stamp: Any) -> None:
        """Wait until everything up to this stamp is counted."""
        self._stamps.wait(stamp)
        self.settle()

    @property
    def is_long(self) -> bool:
        """Whether the window is worth a message."""
        return self._now - self._started >= max(_SHORTEST_S, _PART * self._now)

    def close(self, computing: MicroBatch | None) -> dict[str, Any]:
        """Close the window and begin the next one; returns its values, spans and micro-batches if there are any. computing:
        the micro-batch that is not done."""
        window: dict[str, Any] = {
            "first": self._first,
            "steps": max(0, self._steps - self._first),
            "started": round(self._started + self._epoch, 6),
            "wall": round(self._now - self._started, 6),
            "seconds": by_kind(self._by_kind),
        }
        if told := [each for which, each in self._micro_batches.items() if which != computing]:
            window["micro_batch_s"] = round(statistics.median(told), 9)
        if self._spans:
            window["spans"] = self._spans
        self._open()
        return window

    def _open(self) -> None:
        self._started, self._first = self._now, self._steps
        self._by_kind = [0.0] * len(KINDS)
        self._spans: list[list[Any]] = []
        self._micro_batches: dict[MicroBatch, float] = {}

    def _count_span(self, seconds: float, steps: int, kind: int, step: int | None, shard: int | None) -> None:
        self._steps = steps
        self._by_kind[kind] += seconds
        if self.spans_left and seconds > 0:
            self.spans_left -= 1
            since = round(self._now - self._started, 7)
            self._spans.append([KINDS[kind], step, shard, since, round(seconds, 7)])
        self._now += seconds

    def _count_micro_batch(self, seconds: float, which: MicroBatch) -> None:
        found = self._micro_batches
        found[which] = found.get(which, 0.0) + seconds / which.together
        if len(found) > _MOST_MICRO_BATCHES:
            del found[next(iter(found))]

    def _count_foreign(self, _: float, steps: int, more: int) -> None:
        self._steps = steps
        self._first += more


def by_kind(seconds: list[float]) -> dict[str, float]:
    return {kind: round(each, 6) for kind, each in zip(KINDS, seconds, strict=True) if each > 0}
