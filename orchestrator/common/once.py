"""Work that one process of a host does for all processes of a run.

Each member of a run has the run's mark in its environment, which the processes that it starts inherit. The first one does the
work under a lock of the kernel, and then writes the mark down; so one that is killed half-way leaves the work to the next.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

from orchestrator.common import locks

RUN = "ORCHESTRATOR_MARK_OF_RUN"
_MOST_MARKS = 100  # of the newest runs


def belong_to_run(secret: bytes) -> None:
    """From now on this process and those that it starts belong to the run with this secret."""
    os.environ[RUN] = hashlib.sha256(b"once" + secret).hexdigest()[:32]


def on_this_host(what: str, folder: Path, work: Callable[[], object]) -> None:
    """Do the work, unless a process of this run has done it on this host. One that belongs to no run does it each time.
    what: a name for it; folder: of the project."""
    folder.mkdir(exist_ok=True)
    host = socket.gethostname()
    mark, done = os.environ.get(RUN), folder / f"{what}-{host}.done"
    with locks.held(folder / f"{what}-{host}.lock"):
        known = done.read_text().split() if done.exists() else []
        if mark is not None and mark in known:
            return
        work()
        if mark is not None:
            new = done.with_suffix(f".{os.getpid()}")
            new.write_text("\n".join([*known, mark][-_MOST_MARKS:]))
            new.replace(done)
