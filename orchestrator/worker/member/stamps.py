"""Moments of a member's work, and how far apart they lie, by the clock of the device that does it.

    stamp = stamps.mark()           now; on a card, once it has come to this point of its stream
    stamps.between(before, stamp)   seconds, or None while the card has not come there
    stamps.wait(stamp)              until it has

A thread that launches work on a card is ahead of it, so the thread's own clock tells how long launching took.
"""

from __future__ import annotations

import time
from typing import Any, Protocol


class Stamps(Protocol):
    """Marks of one member; only its compute thread calls this. None of it raises for a card that fails."""

    def mark(self) -> Any:
        """A stamp behind all that this thread has launched."""

    def between(self, begin: Any, end: Any) -> float | None:
        """Seconds from one stamp to a later one; None while that is not known. Stamps get known in their order."""

    def wait(self, stamp: Any) -> None:
        """Wait until all up to this stamp is known."""


class HostStamps:
    """Implements `Stamps` for work that this process does itself: all is known at once."""

    def mark(self) -> float:
        return time.monotonic()

    def between(self, begin: float, end: float) -> float:
        return end - begin

    def wait(self, stamp: float) -> None:
        pass
