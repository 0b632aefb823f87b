"""A member that hears nothing from its driver for `cluster.lease_s` ends itself (rule C6).

The driver renews the leases of all members in a thread, so silence means that the driver or the network between them is
gone. Its other work may take longer than a lease: weights of 10 GB are written, a checkpoint is verified, a server hangs.

A thread of the member watches, because the compute thread may be stuck. When that thread itself was held up (the process was
stopped, or user code held the interpreter), the time does not count, and a new lease begins.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOOKS = 10  # in one lease
_RENEWALS = 4  # in one lease
_HELD_UP = 3  # a look that comes so many times later than it should
_EXIT_CODE = 75


class Silence:
    """How long the driver has not been heard; pure, all times are passed in by the caller."""

    def __init__(self, seconds: float, now: float) -> None:
        self.pause_s = seconds / _LOOKS
        self._seconds = seconds
        self._heard = self._looked = now

    def heard(self, now: float) -> None:
        self._heard = now

    def is_over(self, now: float) -> bool:
        """Whether the lease has run out. Asked every `pause_s`; after a longer pause the lease begins anew."""
        if now - self._looked > _HELD_UP * self.pause_s:
            self._heard = now
        self._looked = now
        return now - self._heard > self._seconds


class Lease:
    """A lease that runs from its construction. expire: called when it runs out."""

    def __init__(self, seconds: float, expire: Callable[[], None] = lambda: os._exit(_EXIT_CODE)) -> None:
        self._silence = Silence(seconds, time.monotonic())
        self._expire = expire
        threading.Thread(target=self._watch, name="lease", daemon=True).start()

    def renew(self) -> None:
        """The driver was heard."""
        self._silence.heard(time.monotonic())

    def _watch(self) -> None:
        while not self._silence.is_over(time.monotonic()):
            time.sleep(self._silence.pause_s)
        self._expire()


@contextmanager
def renewed(seconds: float, renew: Callable[[], None]) -> Iterator[None]:
    """Within this the leases of members are renewed, whatever else the driver does. seconds: of a lease; renew: called in a
    thread."""
    over = threading.Event()

    def keep() -> None:
        while not over.wait(seconds / _RENEWALS):
            renew()

    thread = threading.Thread(target=keep, name="leases", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
