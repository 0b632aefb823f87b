"""Calls of Ray that its head takes part in. If that is gone, Ray waits for it for a minute, and then ends this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

_LOOK_S = 0.5
_BROUGHT_S: Final = 10.0  # an actor that was killed answers within milliseconds, that it is gone


def unless_gone(call: Callable[[], object], trouble: Callable[[], str | None]) -> None:
    """Returns when the call does, or when its Ray turns out to be gone. trouble: with the Ray. Exceptions of the call are
    ignored, as of a Ray that goes at this moment."""

    def ask() -> None:
        with suppress(Exception):
            call()

    if trouble() is not None:
        return
    asking = threading.Thread(target=ask, name="call of Ray", daemon=True)
    asking.start()
    while asking.is_alive() and trouble() is None:
        asking.join(_LOOK_S)


class Answers:
    """Answers that are still to come. Ray brings each in a thread of its own. If that is after `ray.shutdown()`, Ray ends this
    process, so all are waited for when their actors have been killed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = 0

    def expect(self, answer: Any, take: Callable[[Any], None]) -> None:
        """answer: a reference. take: is given its future, in that thread."""
        with self._changed:
            self._open += 1

        def brought(future: Any) -> None:
            try:
                take(future)
            finally:
                with self._changed:
                    self._open -= 1
                    self._changed.notify_all()

        answer.future().add_done_callback(brought)

    def wait(self, trouble: Callable[[], str | None]) -> None:
        """Until all are there; no longer than some seconds, nor for a Ray in trouble."""
        until = time.monotonic() + _BROUGHT_S
        with self._changed:
            while self._open and time.monotonic() < until and trouble() is None:
                self._changed.wait(_LOOK_S)
