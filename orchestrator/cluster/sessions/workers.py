"""The workers of a private Ray are forked from a process that has imported torch, Ray and this package already.

Without it each worker imports them, which takes 1.6 s of a processor; so does each that replaces a lost one, and each trial of
a sweep. The raylet starts `cluster/forkserver/client.py` in place of a worker's program. The client asks the server for a
process, or becomes the worker itself. The server is started as soon as a private Ray is certain, and imports beside the driver.

It is not used with other versions of Ray than `common.tested_versions.RAY`: no documentation says that a raylet accepts workers
that it has not started. Nor is it used with ORCHESTRATOR_FORK=0. Workers on GPUs are forked as well: the server never starts
CUDA, and Ray tells a worker its GPU (CUDA_VISIBLE_DEVICES) before the worker starts it.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from orchestrator.cluster.forkserver import client, launch_server
from orchestrator.cluster.sessions.environment import replaced
from orchestrator.common import tested_versions

OFF = "ORCHESTRATOR_FORK"  # set to 0, it keeps every worker and loader from being forked
_COMMAND = "--python_worker_command="
_begun: list[launch_server.LaunchServer] = []


def begin(cpus: float) -> None:
    """Have the server import from now on, if workers with so many CPUs each can be forked; `taken` gives it."""
    if not _begun and _can_be_forked(cpus):
        with contextlib.suppress(OSError):  # without it workers begin as Ray starts them
            _begun.append(launch_server.LaunchServer())


def end() -> None:
    """End a server that was begun and not taken."""
    while _begun:
        _begun.pop().close()


@contextlib.contextmanager
def forked(cpus: float) -> Iterator[launch_server.LaunchServer | None]:
    """Within this a Ray that is started has its workers forked. Gives what has to be closed once that Ray has ended."""
    begin(cpus)
    server = _begun.pop() if _begun else None
    if server is None or server.place is None:
        yield None
        return
    from ray._private import services

    usual = getattr(services, "start_ray_process", None)
    place = str(server.place)

    def start(command: list[str], *arguments: Any, **options: Any) -> Any:
        assert usual is not None
        return usual([_asking(each, place) for each in command], *arguments, **options)

    with replaced(services, "start_ray_process", start):
        yield server


def _asking(argument: str, place: str) -> str:
    """The raylet's command, with which a worker asks the server at this place first."""
    if not argument.startswith(_COMMAND):
        return argument
    first = subprocess.list2cmdline([sys.executable, "-I", "-S", client.__file__, place])
    return f"{_COMMAND}{first} {argument.removeprefix(_COMMAND)}"


def _can_be_forked(cpus: float) -> bool:
    """Ray has numpy's library start a thread for each CPU of a worker while it is loaded, and a server runs a single one."""
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, math.floor(cpus)))
    return tested_versions.RAY.is_here and threads == "1" and os.environ.get(OFF) != "0"
