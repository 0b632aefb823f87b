"""A member that hears nothing from its driver for `cluster.lease_s` ends itself (rule C6).

The driver polls every member all the time, so silence means that it is gone, or that the network between them is. A thread of
its own looks, because the compute thread may be stuck; and when that thread itself was held up (the process was stopped, or
user code held the interpreter), the silence is its own fault, and the driver gets another lease to be heard in.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

_LOOKS = 10  # in one lease
_EXIT_CODE = 75


class Lease:
    """Running from its construction. expire: for tests; what happens at the end."""

    def __init__(self, seconds: float, expire: Callable[[], None] = lambda: os._exit(_EXIT_CODE)) -> None:
        self._seconds = seconds
        self._expire = expire
        self._renewed = time.monotonic()
        threading.Thread(target=self._watch, name="lease", daemon=True).start()

    def renew(self) -> None:
        """The driver was heard."""
        self._renewed = time.monotonic()

    def _watch(self) -> None:
        pause = self._seconds / _LOOKS
        looked = time.monotonic()
        while True:
            time.sleep(pause)
            now = time.monotonic()
            if now - looked > 3 * pause:
                self._renewed = now
            looked = now
            if now - self._renewed > self._seconds:
                self._expire()
                return
