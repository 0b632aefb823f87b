"""A child of a worker (`common.child`): forked where its worker was forked and the server is still there, else started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from orchestrator.cluster.forkserver import client
from orchestrator.common.child import Child, Messages, Started
from orchestrator.common.descriptors import readable
from orchestrator.common.kernel_calls import kill, process_descriptor


def child(module: str) -> Child:
    """The module's `main`, in a process of its own."""
    return _forked(module) or Started(module)


class Forked:
    """It ends with this process, since it ends with the connection over which it was asked for."""

    def __init__(self, pid: int, connection: socket.socket, messages: Messages) -> None:
        self.pid = pid
        self.messages = messages
        self._connection = connection
        self._process: int | None = None
        with contextlib.suppress(OSError):  # it has ended already, or the kernel has no such descriptors
            self._process = process_descriptor(pid)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None:
                kill(self._process)
            elif (told := self._connection.fileno()) >= 0 and not readable([told], 0):  # nobody has told of its end
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> int | None:
        self.messages.close()
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
    messages = Messages(os.fdopen(ours_out, "rb"), os.fdopen(ours_in, "wb"))
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
        return Forked(answer["forked"], connection, messages)
    messages.close()
    connection.close()
    return None


def _differences(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str | None]:
    """With None for what is there no more."""
    return {name: now.get(name) for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)}
