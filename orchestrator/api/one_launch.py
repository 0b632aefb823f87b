"""A process starts one launch at a time, since Ray is in each process once.

A second launch would shut down the Ray of the first, and so would a launch the one that a program has started for itself. In a
forked process the Ray of its parent does not answer. Each is refused before anything starts.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.errors import UsageError

_ELSEWHERE = "or launch from a process of its own (subprocess, or multiprocessing with the method spawn)"
_goes_on = threading.Lock()
_process_of_launches: int | None = None  # the number of the process that has made the first one


@contextmanager
def alone() -> Iterator[None]:
    """The block is the only launch of this process. Raises UsageError where it cannot be."""
    global _process_of_launches
    if _process_of_launches not in (None, os.getpid()):
        raise UsageError(
            "this process was forked from one that has launched a run, and Ray does not work in both",
            f"launch from the parent, {_ELSEWHERE}",
            code="command.forked",
        )
    if not _goes_on.acquire(blocking=False):
        raise UsageError(
            "another launch of this process goes on, and each needs the process for itself",
            f"wait for its end, {_ELSEWHERE}",
            code="command.another-launch",
        )
    try:
        if _has_ray():
            raise UsageError(
                "this process is connected to a Ray already, and a run makes a connection of its own",
                f"call ray.shutdown() first, {_ELSEWHERE}; cluster.address=HOST:PORT joins a Ray that runs",
                code="command.in-ray",
            )
        _process_of_launches = os.getpid()
        yield
    finally:
        _goes_on.release()


def _has_ray() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()
