"""One handshake over one socket: gives a generator of `handshake.py` its input and output, descriptors included.

It reads exactly what the protocol asks for, so that the first frame stays in the socket for the link that comes
after. Non-blocking: whoever owns the poller calls `advance` when the socket is ready. It has no deadline of its own.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Generator, Sequence
from typing import Final, Generic, TypeVar

from orchestrator.comm.transports.base import Descriptor
from orchestrator.comm.transports.handshake import MAX_REGIONS, Step
from orchestrator.comm.transports.tls import waits_to_write

Result = TypeVar("Result")
_FD_BYTES: Final = struct.calcsize("i")
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(MAX_REGIONS * _FD_BYTES)


class Handshake(Generic[Result]):
    """One handshake over one socket, carried on whenever `advance` is called; may be left alone in between."""

    def __init__(
        self,
        connection: socket.socket,
        protocol: Generator[Step, bytes, Result],
        descriptors: Sequence[Descriptor] = (),
    ) -> None:
        self.connection = connection
        self.result: Result | None = None
        self.received_fds: list[int] = []
        self._protocol = protocol
        self._own_fds = [descriptor.fd for descriptor in descriptors]
        self._begin(next(protocol))

    @property
    def sending(self) -> bool:
        return waits_to_write(self.connection, bool(self._unsent))

    @property
    def offered(self) -> bool:
        """This side has said everything. The other one has its link perhaps, and reads what comes next as a frame."""
        return self._last and not self._unsent

    def advance(self) -> bool:
        """Go on until the result is there (True) or the socket has to be waited for (False).
        Raises OSError and what the protocol raises."""
        try:
            while self.result is None:
                if self._unsent:
                    self._send()
                elif len(self._read) < self._expect_bytes:
                    self._receive()
                else:
                    self._resume()
        except BlockingIOError:
            return False
        return True

    def close_fds(self) -> None:
        while self.received_fds:
            os.close(self.received_fds.pop())

    def close(self) -> None:
        self.close_fds()
        self.connection.close()

    def _begin(self, step: Step) -> None:
        self._unsent, self._expect_bytes, self._read = step.send, step.expect_bytes, bytearray()
        self._last = step.with_descriptors
        self._passing = self._own_fds if step.with_descriptors else []

    def _resume(self) -> None:
        try:
            self._begin(self._protocol.send(bytes(self._read)))
        except StopIteration as end:
            self.result = end.value

    def _send(self) -> None:
        if self._passing:
            sent = socket.send_fds(self.connection, [self._unsent], self._passing)
        else:
            sent = self.connection.send(self._unsent, socket.MSG_NOSIGNAL)
        self._unsent, self._passing = self._unsent[sent:], []

    def _receive(self) -> None:
        missing = self._expect_bytes - len(self._read)
        # Not socket.recv_fds: Python 3.11's drops the flags, and a descriptor would be inherited.
        data, ancillary, _, _ = self.connection.recvmsg(missing, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self.received_fds += memoryview(content[: len(content) // _FD_BYTES * _FD_BYTES]).cast("i")
        if not data:
            raise ConnectionResetError("it hung up during the handshake")
        self._read += data
