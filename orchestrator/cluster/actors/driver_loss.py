"""The end of a member of a private Ray when its driver is gone: it ends the step in order, leaves what it knows, and ends
itself.

The members hear of it at once, since the kernel tells (pidfd_open(2)). They vote to stop, as they do after Ctrl-C, so each
has the state of the same step, and write it as the parts of a checkpoint. Their untold news, lines of the trace and written
parts, goes into a file beside the checkpoints, which a later driver reads (`driver.recording.failover_reports`). A worker
that is left by a peer in that moment, and has a whole state, writes that alone.

Ray ends a worker within seconds after its raylet, which dies with the driver; `sessions.local` has it wait for longer. Head
and raylet of a driver that is gone end its actors, if they live for a moment longer, but not detached ones (`members`). The
lease (rule C6) bounds all of it. A member that is stopped by then is ended by a later launch (`sessions.folders`).
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.common import locks
from orchestrator.common.processes import wait_for_end

PREFIX = "handed-over-"  # of the files beside the checkpoints


@dataclass(frozen=True)
class DriverHandle:
    """The driver of a private Ray, as its members watch it. driver: its process, on the machine of the members; lock: a file
    on which each member has a lock while it lives, and which is touched when the driver has ended."""

    driver: int
    lock: str


class DriverLossDetector:
    """Waits for the end of the driver, in a thread. driver_lost: called then, in that thread; the process ends after it."""

    def __init__(self, driver_handle: DriverHandle, driver_lost: Callable[[], None]) -> None:
        self._lock = os.open(driver_handle.lock, os.O_RDONLY | os.O_CLOEXEC)  # held until this process ends
        locks.lock(self._lock, shared=True)
        self._driver_lost = driver_lost
        threading.Thread(target=self._watch, args=(driver_handle.driver,), name="driver watch", daemon=True).start()

    def _watch(self, driver: int) -> None:
        wait_for_end(driver)
        try:
            os.utime(self._lock)
            self._driver_lost()
        finally:
            os._exit(0)


def written(entries: Iterable[Mapping[str, Any]]) -> bytes:
    """The untold news of a member, as a file."""
    return "".join(json.dumps(entry) + "\n" for entry in entries).encode()
