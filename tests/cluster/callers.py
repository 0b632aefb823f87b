"""Members that are scripts, and report to a relay of the node `NODE`."""

from __future__ import annotations

import os
import pickle
import socket
from typing import Any

from orchestrator.cluster.actors.report_relay import KEPT, REPORT, address, hello

SECRET = b"secret"
NODE = f"node of process {os.getpid()}"  # tests run beside each other
_LONG_S = 60.0  # reached only when a test hangs
_open: list[socket.socket] = []


class Member:
    """A member that says what it is told to."""

    def __init__(self, number: int, secret: bytes = SECRET) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        _open.append(self.connection)
        self.connection.connect(address(SECRET, NODE))
        self.connection.settimeout(_LONG_S)
        self.connection.sendall(hello(secret, number))

    def says(self, first: int, *entries: Any, urgent: bool = False) -> None:
        self.connection.sendall(packed(first, *entries, urgent=urgent))

    def hears(self) -> int:
        number: int = KEPT.unpack(self.connection.recv(KEPT.size, socket.MSG_WAITALL))[0]
        return number


def packed(first: int, *entries: Any, urgent: bool = False) -> bytes:
    """A report as a member sends it."""
    body = pickle.dumps((list(entries), {"beats": first}))
    return REPORT.pack(len(body), first, urgent) + body


def close_all() -> None:
    while _open:
        _open.pop().close()
