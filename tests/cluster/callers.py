"""Members that are scripts, and report to a relay of the node `NODE`."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.cluster.actors.host_relay import REPORT, WORD, Answer, RelayActor, address, hello

SECRET = b"secret"
NODE = f"node of process {os.getpid()}"  # tests run beside each other
NO_RECORD = -1  # a descriptor that no process has
_LONG_S = 60.0  # reached only when a test hangs
_open: list[socket.socket] = []


class Member:
    """A member that says what it is told to."""

    def __init__(
        self, number: int, secret: bytes = SECRET, *, says_hello: bool = True, crash_record: int = NO_RECORD
    ) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        _open.append(self.connection)
        self.connection.connect(address(SECRET, NODE))
        self.connection.settimeout(_LONG_S)
        if says_hello:
            self.connection.sendall(hello(secret, number, crash_record))

    def says(self, first: int, *entries: Any, urgent: bool = False, next_call: int = 0) -> None:
        self.connection.sendall(packed(first, *entries, urgent=urgent, next_call=next_call))

    def hears(self) -> int:
        """The number that it is told of what the driver has; fails where it is called instead."""
        number, _, size = WORD.unpack(self.connection.recv(WORD.size, socket.MSG_WAITALL))
        assert size == 0
        return int(number)

    def is_called(self) -> tuple[int, bytes]:
        """The number of the next call, and the call."""
        size = 0
        while not size:
            _, number, size = WORD.unpack(self.connection.recv(WORD.size, socket.MSG_WAITALL))
        call = b""
        while len(call) < size:
            call += self.connection.recv(size - len(call))
        return number, call


def packed(first: int, *entries: Any, urgent: bool = False, next_call: int = 0) -> bytes:
    """A report as a member sends it."""
    body = pickle.dumps((list(entries), {"beats": first}))
    return REPORT.pack(len(body), first, next_call, urgent) + body


def close_all() -> None:
    while _open:
        _open.pop().close()


def exchanged(
    actor: RelayActor, wait_s: float, kept: Mapping[int, int] | None = None, dropped: Sequence[int] = ()
) -> Answer:
    """The answer of the relay of another node, which is short."""
    part, left = actor.exchange(kept or {}, list(dropped), wait_s, 0.0)
    assert left == 0
    answer: Answer = pickle.loads(part)
    return answer
