"""Waits for files on other machines. The run is told of a wait, and the waiting process still counts as alive.

    listen(tell, alive)     of this thread: what it waits for is told, and while it waits `alive` is called again and again,
                            which may raise to end it
    Wait(what).look()       once in each turn of a loop that waits
    until(what, action)     an action that may hang or fail, in a thread of its own, tried again while it fails
    tried(what, action)     the same, tried once
    taken()                 the bytes that this thread has had from elsewhere and from the cache, since it asked last

Libraries that fetch draw the pauses between their tries from Python's global generator, which is seeded for the samples:
`undisturbed()` puts it back.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeVar

from orchestrator.errors import DataDamaged

_T = TypeVar("_T")
Tell = Callable[[str], None]
_LOOK_S = 0.02
_ALIVE_S = 0.5
_FIRST_TOLD_S, _TOLD_EVERY_S = 5.0, 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0


class BytesRead(NamedTuple):
    """Bytes of whole files: those that this process fetched, and those that it found in the cache."""

    fetched: int = 0
    cached: int = 0


NOTHING: Final = BytesRead()


class _Here(threading.local):
    def __init__(self) -> None:
        self.tell: Tell = lambda _: None
        self.alive: Callable[[], None] = lambda: None
        self.taken = NOTHING


_here = _Here()


def listen(tell: Tell, alive: Callable[[], None] = lambda: None) -> None:
    _here.tell, _here.alive = tell, alive


def count(size: int, *, fetched: bool) -> None:
    add(BytesRead(fetched=size) if fetched else BytesRead(cached=size))


def add(read: BytesRead) -> None:
    """By another process, for this thread."""
    before = _here.taken
    _here.taken = BytesRead(before.fetched + read.fetched, before.cached + read.cached)


def pass_on(text: str | None) -> None:
    """Pass on what another process waits for that reads for this thread; None: it lives."""
    if text is not None:
        _here.tell(text)
    _here.alive()


def take_counts() -> BytesRead:
    found, _here.taken = _here.taken, NOTHING
    return found


_fetching = 0


def is_fetching() -> bool:
    """Whether any thread of this process does: what is opened then is no doing of the user's code."""
    return _fetching > 0


@contextmanager
def undisturbed() -> Iterator[None]:
    global _fetching
    state = random.getstate()
    _fetching += 1
    try:
        yield
    finally:
        _fetching -= 1
        random.setstate(state)


class Wait:
    """A wait for a place that does not answer. what: for messages; a function where it is another one each time."""

    def __init__(self, what: str | Callable[[], str]) -> None:
        self._name = what
        self._began = self._lived = time.monotonic()
        self._next = self._began + _FIRST_TOLD_S

    @property
    def _what(self) -> str:
        return self._name if isinstance(self._name, str) else self._name()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def look(self) -> None:
        """Raises what `alive` raises."""
        time.sleep(_LOOK_S)
        self.live()

    def live(self, moved: float = 0.0) -> None:
        """Tell that the process lives, while data still arrive. moved: when something last arrived."""
        now = time.monotonic()
        if moved > self._began:
            self._began, self._next = moved, max(self._next, moved + _FIRST_TOLD_S)
        if now - self._lived >= _ALIVE_S:
            self._lived = now
            _here.alive()
        if now >= self._next:
            self._next = now + _TOLD_EVERY_S
            _here.tell(f"waiting for {self._what} ({self.seconds:.0f} s so far)")

    def pause(self, seconds: float, why: object) -> None:
        """Raises what `alive` raises."""
        _here.tell(f"waiting for {self._what}: {why}; asked again in {seconds:g} s ({self.seconds:.0f} s so far)")
        end = time.monotonic() + seconds
        self._next = end + _FIRST_TOLD_S
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _ALIVE_S))
            self.live()


class Attempt:
    """The news of an action that runs in a thread of its own. over: nobody waits for it any more."""

    def __init__(self) -> None:
        self.over = False
        self.moved = time.monotonic()

    def moves(self) -> None:
        self.moved = time.monotonic()


def until(where: str, action: Callable[[Attempt], _T], patience_s: float) -> _T:
    """The result of an action, once it does not raise OSError. Raises DataDamaged where nothing has moved for so many
    seconds; FileNotFoundError and PermissionError at once, since to try again is in vain."""
    wait, pause = Wait(where), _FIRST_PAUSE_S
    while True:
        try:
            return _finished(action, wait, patience_s)
        except (FileNotFoundError, PermissionError):
            raise
        except OSError as error:
            if wait.seconds + pause > patience_s:
                raise DataDamaged(
                    f"{where} could not be fetched for {wait.seconds:.0f} s: {error}",
                    "see to the store and the way to it, and go on with resume=; data.store_timeout_s is how long it is asked",
                    code="data.store-timeout",
                ) from error
            wait.pause(pause, error)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


def tried(where: str, action: Callable[[Attempt], _T], patience_s: float) -> _T:
    """The result of an action that is not tried again. Raises OSError, also where nothing has moved for so many seconds."""
    return _finished(action, Wait(where), patience_s)


def _finished(action: Callable[[Attempt], _T], wait: Wait, patience_s: float) -> _T:
    """Raises OSError for one that hangs, too."""
    attempt, future = Attempt(), Future[_T]()
    threading.Thread(target=_act, args=(action, attempt, future), daemon=True, name="fetching").start()
    try:
        while not futures.wait([future], _ALIVE_S).done:
            wait.live(attempt.moved)
            if wait.seconds > patience_s:
                raise OSError("it does not answer")
        return future.result()
    finally:
        attempt.over = True


def _act(action: Callable[[Attempt], _T], attempt: Attempt, future: Future[_T]) -> None:
    try:
        future.set_result(action(attempt))
    except BaseException as error:
        future.set_exception(error)
