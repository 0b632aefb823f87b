"""Disturbances of a process whose user rehearses losses: it is killed, or stopped for a while."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

from orchestrator.controller.fault_injection import Kind

_paused: list[subprocess.Popen[bytes]] = []


def inject(pid: int, kind: Kind, pause_s: float) -> None:
    """A process that is stopped cannot wake itself, and whoever stops it may be gone by then, so a shell does both."""
    if kind == "kill":
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return
    _paused[:] = [process for process in _paused if process.poll() is None]
    command = f"kill -STOP {pid} && sleep {pause_s:.3f}; kill -CONT {pid}"
    nowhere = subprocess.DEVNULL
    shell = ["/bin/sh", "-c", command]
    _paused.append(subprocess.Popen(shell, start_new_session=True, stdin=nowhere, stdout=nowhere, stderr=nowhere))
