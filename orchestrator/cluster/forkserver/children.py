"""A child of a worker (`data.child`): forked where the worker itself was forked and the server is still there, else started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from orchestrator.cluster.forkserver import client
from orchestrator.data.child import Child, Started


def child(module: str) -> Child:
    """The module's `main`, in a process of its own."""
    return _forked(module) or Started(module)


class Forked:
    """It ends with this process, since it ends with the connection over which it was asked for."""

    def __init__(self, pid: int, connection: socket.socket, streams: tuple[IO[bytes], IO[bytes]]) -> None:
        self.pid = pid
        self.input, self.output = streams
        self._connection = connection
        self._process: int | None = None
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            self._process = os.pidfd_open(pid)

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def close(self) -> int | None:
        for stream in (self.input, self.output):
            with contextlib.suppress(BrokenPipeError):  # of what it did not read any more
                stream.close()
        if self._process is not None:
            os.close(self._process)
            self._process = None
        with self._connection, contextlib.suppress(OSError, ValueError):
            found, _ = client.receive(self._connection)
            if found is not None:
                return os.waitstatus_to_exitcode(found["status"])
        return None  # the server has ended before it


def _forked(module: str) -> Forked | None:
    if client.came_from is None:
        return None
    place, own = client.came_from
    connection = client.connected(place)
    if connection is None:
        return None
    theirs_in, ours_in = os.pipe()
    ours_out, theirs_out = os.pipe()
    streams = os.fdopen(ours_in, "wb"), os.fdopen(ours_out, "rb")
    request = {
        "argv": [module],
        "environ": own["environ"],
        "since": _differences(own["environ"], os.environ),
        "path": [path or str(Path.cwd()) for path in sys.path],
        "program": module,
    }
    try:
        answer = client.ask(connection, request, streams=(theirs_in, theirs_out, 2))
    finally:
        os.close(theirs_in)
        os.close(theirs_out)
    if answer is not None and "forked" in answer:
        return Forked(answer["forked"], connection, streams)
    for each in (*streams, connection):
        each.close()
    return None


def _differences(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str | None]:
    """With None for what is there no more."""
    return {name: now.get(name) for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)}
