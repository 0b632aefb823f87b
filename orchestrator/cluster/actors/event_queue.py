"""The events of an actor, kept until the driver has received them: a numbered list that is read by long polling."""

from __future__ import annotations

import sys
import threading
from typing import Any, TextIO

Entry = dict[str, Any]


class EventQueue:
    """A queue of numbered entries, written by the compute thread and read by the actor's control thread."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._first = 0  # number of the oldest entry that is kept
        self._urgent = False
        self._changed = threading.Condition()

    def put(self, entry: Entry, *, urgent: bool = False) -> None:
        """Append an entry. urgent: send it at once, and with it what still waits for more to be sent together."""
        with self._changed:
            self._entries.append(entry)
            self._urgent = self._urgent or urgent
            self._changed.notify_all()

    def unacknowledged(self) -> list[Entry]:
        """The entries that the driver may not have received yet."""
        with self._changed:
            return list(self._entries)

    def take(self, after: int, wait_s: float, gather_s: float) -> list[Entry]:
        """Forget the entries before number `after`, which the driver has; wait up to `wait_s` for others, then
        `gather_s` more, so that a fast run sends many at once; return them."""
        with self._changed:
            del self._entries[: max(0, after - self._first)]
            self._first = max(self._first, after)
            if self._changed.wait_for(lambda: bool(self._entries), wait_s):
                self._changed.wait_for(lambda: self._urgent, gather_s)
            self._urgent = False
            return list(self._entries)


class Printed:
    """A text stream that puts whole lines into an event queue, since what the user's code prints has to reach the user."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, event_queue: EventQueue, behind: TextIO) -> None:
        self._event_queue = event_queue
        self._behind = behind
        self._line = ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._event_queue.put({"printed": line})
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._behind.fileno()


def capture_prints(event_queue: EventQueue) -> None:
    """From now on, what this process prints goes to the event queue."""
    sys.stdout = Printed(event_queue, sys.stdout)
    sys.stderr = Printed(event_queue, sys.stderr)
