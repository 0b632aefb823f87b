"""A thread for what is done beside the steps: copying, hashing and writing."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress


class Background:
    """One thread that waits for work, because starting one means waiting for it, and on busy cores that is most of a small
    stall. nice: how much lower its priority is than that of the thread that starts it."""

    def __init__(self, name: str, nice: int) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        threading.Thread(target=self._live, args=(nice,), name=name, daemon=True).start()

    @property
    def busy(self) -> bool:
        return not self._idle.is_set()

    def start(self, act: Callable[[], None]) -> None:
        """Do this; nothing else may be under way."""
        self._idle.clear()
        self._work.put(act)

    def wait(self, timeout_s: float | None) -> bool:
        """Until there is nothing to do; False when that took longer."""
        return self._idle.wait(timeout_s)

    def close(self) -> None:
        """End the thread when all is done; does not wait."""
        self._work.put(None)

    def _live(self, nice: int) -> None:
        with suppress(OSError, AttributeError):  # not everywhere, and only a courtesy
            own = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + nice)
        while (act := self._work.get()) is not None:
            try:
                act()
            finally:
                del act  # it holds tensors of the state
                self._idle.set()
