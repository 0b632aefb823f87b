"""Messages that leave when the device has done what they tell of, while this member goes on.

A member that waited before each message would enqueue its next task only on a device that has nothing left to do. Here it
enqueues one after the other. Messages leave in the order in which they were given, each as soon as its mark is reached.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from orchestrator.numerics.enqueued import Mark


class Departures:
    """The messages of one member that have not left."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Mark | None, Callable[[], None]]] = deque()

    @property
    def empty(self) -> bool:
        return not self._waiting

    def add(self, mark: Mark | None, leave: Callable[[], None]) -> None:
        """Have a message leave in its turn. leave: sends the message, when the device has come to the mark; None: it tells
        of nothing there. It leaves at once where that is so already and none waits before it. Raises what sending raises."""
        self._waiting.append((mark, leave))
        self.go()

    def go(self) -> bool:
        """Send those that may leave; returns whether there were any. Waits for nothing."""
        gone = False
        while self._waiting and ((mark := self._waiting[0][0]) is None or mark.query()):
            self._waiting.popleft()[1]()
            gone = True
        return gone

    def finish(self) -> None:
        """Send all, and wait for each to be there."""
        while self._waiting:
            mark = self._waiting[0][0]
            if mark is not None:
                mark.synchronize()
            self._waiting.popleft()[1]()
