"""The events of an actor, kept until the driver has received them: a numbered list that the actor's reporter reads."""

from __future__ import annotations

import codecs
import io
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Entry = dict[str, Any]

ANSWERS: Final = "answers"  # the key of an entry that answers a call of the driver; its number
_LONGEST: Final = 1 << 14  # characters that are printed without the end of a line, and then are one


class Batch(NamedTuple):
    """Entries that follow each other."""

    first: int  # number of the first of them; where there are none, of the next one
    entries: list[Entry]
    urgent: bool = False  # whether they are wanted at once


class EventQueue:
    """A queue of numbered entries, written by the compute thread and read by the reporter's thread."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._first = 0  # number of the oldest entry that is kept
        self._urgent = False
        self._gathers = False  # the reader waits for more, and is woken by what is urgent alone
        self._changed = threading.Condition()

    def put(self, entry: Entry, *, urgent: bool = False) -> None:
        """Append an entry. urgent: send it at once, and with it what still waits for more to be sent together."""
        with self._changed:
            self._entries.append(entry)
            self._urgent = self._urgent or urgent
            if urgent or not self._gathers:
                self._changed.notify_all()

    def unacknowledged(self) -> list[Entry]:
        """The entries that the driver may not have received yet, without answers to its calls."""
        with self._changed:
            return [entry for entry in self._entries if ANSWERS not in entry]

    def acknowledge(self, number: int) -> None:
        """Forget the entries before this number, which the driver has."""
        with self._changed:
            del self._entries[: max(0, number - self._first)]
            self._first = max(self._first, number)

    def take(self, after: int, wait_s: float, gather_s: float) -> Batch:
        """Wait up to `wait_s` for entries from number `after` on, then `gather_s` more, so that a fast run sends many at
        once."""
        with self._changed:
            if self._changed.wait_for(lambda: self._urgent or self._first + len(self._entries) > after, wait_s):
                self._gathers = True
                self._changed.wait_for(lambda: self._urgent, gather_s)
                self._gathers = False
            urgent, self._urgent = self._urgent, False
            return self._rest(after)._replace(urgent=urgent)

    def _rest(self, after: int) -> Batch:
        first = max(after, self._first)
        return Batch(first, self._entries[first - self._first :])


class Printed(io.TextIOWrapper):
    """A text stream that puts whole lines into an event queue, since what the user's code prints has to reach the user. It can
    be set up, and its `buffer` takes bytes and may have another stream in front of it."""

    def __init__(self, event_queue: EventQueue, behind: TextIO) -> None:
        lines: Any = _Lines(event_queue, behind)
        super().__init__(lines, encoding="utf-8", errors="backslashreplace", write_through=True)


class _Lines(io.BufferedIOBase):
    """A progress bar writes its line anew behind a carriage return, and may do so for days: the last one counts."""

    def __init__(self, event_queue: EventQueue, behind: TextIO) -> None:
        self.name = behind.name
        self._event_queue = event_queue
        self._behind = behind
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line = ""
        self._process = os.getpid()

    def write(self, data: ReadableBuffer, /) -> int:
        if os.getpid() != self._process:  # forked: nobody reads its queue, whose lock may be held there for ever
            return os.write(self.fileno(), data)
        *lines, rest = (self._line + self._decoder.decode(bytes(data))).split("\n")
        self._line = _last(rest)
        if len(self._line) > _LONGEST:
            lines.append(self._line)
            self._line = ""
        for line in lines:
            self._event_queue.put({"printed": _last(line).removesuffix("\r")})
        return memoryview(data).nbytes

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """It stays open: a stream that the user's code has put in front of it closes it when it is let go of."""

    def fileno(self) -> int:
        return self._behind.fileno()


def _last(line: str) -> str:
    """The part that a terminal shows of it, with the carriage return at its end."""
    shown = line.rstrip("\r")
    return shown.rpartition("\r")[2] + line[len(shown) :][:1]


def capture_prints(event_queue: EventQueue) -> None:
    """From now on, what this process prints goes to the event queue."""
    sys.stdout = Printed(event_queue, sys.stdout)
    sys.stderr = Printed(event_queue, sys.stderr)
