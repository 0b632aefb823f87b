"""In which order small runs go, and how many side by side. The order is pure."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Self


def ordered(shown: Sequence[Collection[str]], after: Mapping[int, int]) -> list[int]:
    """The places of all runs. shown: what each of them shows; after: for some, another one that has to come before.

    The next run is the one that shows most of what no run before it has shown, and the earlier of two that show as much. Once
    all is shown that can be, the rest follows by the same rule: second examples, then third ones.
    """
    left = dict.fromkeys(range(len(shown)))
    order: list[int] = []
    seen: set[str] = set()
    while left:
        best = max(left, key=lambda place: len(set(shown[place]) - seen))
        if seen and not set(shown[best]) - seen:
            seen = set()
            continue
        for place in (after.get(best), best):
            if place in left:
                del left[place]
                order.append(place)
                seen |= set(shown[place])
    return order


def processors() -> int:
    return len(os.sched_getaffinity(0))


class Slots:
    """So many processors, which runs take and give back. The first that asked is served first, so that small runs do not keep a
    large one waiting for ever."""

    def __init__(self, count: int) -> None:
        self._all = self._free = count
        self._waiting: deque[Turn] = deque()
        self._changed = threading.Condition()

    def turn(self, wanted: int) -> Turn:
        """The place behind all that have asked; its block has to be entered. wanted: at most all of them are taken."""
        with self._changed:
            turn = Turn(self, min(wanted, self._all))
            self._waiting.append(turn)
            return turn

    def take(self, turn: Turn) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting[0] is turn and self._free >= turn.wanted)
            self._waiting.popleft()
            self._free -= turn.wanted
            self._changed.notify_all()

    def give(self, turn: Turn) -> None:
        with self._changed:
            self._free += turn.wanted
            self._changed.notify_all()


class Turn:
    """A block that begins when its processors are free."""

    def __init__(self, slots: Slots, wanted: int) -> None:
        self._slots, self.wanted = slots, wanted

    def __enter__(self) -> Self:
        self._slots.take(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._slots.give(self)
