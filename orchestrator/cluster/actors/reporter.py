"""A member's connection with the relay of its host: reports go to the driver by it, and calls of the driver come.

A reporter sends when there is something to send, and else a heartbeat from time to time. Entries stay in the queue until the
driver has acknowledged them, and are sent again to a relay that takes the place of a lost one. Each word of the driver, an
acknowledgement or a call, renews the member's lease.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orchestrator.cluster.actors.calls import CallHandler
from orchestrator.cluster.actors.event_queue import EventQueue
from orchestrator.cluster.actors.host_relay import REPORT, WORD, address, bell, hello, is_own_user

if TYPE_CHECKING:
    from orchestrator.config.plan import Timeouts

Send = Callable[[bytes, bool], None]  # a report, and whether it is urgent

_BEAT_S = 2.0  # between two reports of a member that has nothing to say, at most
_HEARTBEAT_SHARE = 0.25  # of the time after which a member counts as stuck
_SILENT_SHARE = 0.4  # of the time after which an accused member that is not heard of is taken for dead
_EAGER_S = 0.05  # for more to say, at rank 0, whose entries are wanted at once
_GATHER_S = 1.0  # at the others
_RETRY_S = 0.2


def beat_s(timeouts: Timeouts) -> float:
    """The seconds between two reports of a member that has nothing to say, which are the age of its heartbeat."""
    return min(_BEAT_S, timeouts.step_s * _HEARTBEAT_SHARE, timeouts.unreachable_s * _SILENT_SHARE)


class Reporter:
    """Sends the reports of one member, for as long as its process lives."""

    def __init__(
        self,
        event_queue: EventQueue,  # of the member
        heartbeat: Callable[[], dict[str, Any]],  # takes it
        heard: Callable[[], None],  # the driver was
        beat_s: float,  # at most between two reports
        next_call: Callable[[], int],  # number of the next call of the driver
    ) -> None:
        self._event_queue = event_queue
        self._heartbeat = heartbeat
        self._heard = heard
        self._beat_s = beat_s
        self._next_call = next_call
        self.eager = False  # its entries are wanted at once

    def kept(self, number: int) -> None:
        """The driver has the entries before this one."""
        self._event_queue.acknowledge(number)
        self._heard()

    def serve(self, dial: Callable[[], Send]) -> None:
        """Report for ever. dial: connects with the relay of this host; it and what it returns may raise OSError. It goes
        on, too, after there was no room for one more thread or for a report."""
        while True:
            with contextlib.suppress(OSError, RuntimeError, MemoryError):
                self._report(dial())
            time.sleep(_RETRY_S)

    def _report(self, send: Send) -> None:
        sent, wait_s = 0, 0.0  # all that is kept is sent by each connection
        while True:
            gather_s = _EAGER_S if self.eager else _GATHER_S
            batch = self._event_queue.take(sent, wait_s, min(gather_s, self._beat_s))
            body = pickle.dumps((batch.entries, self._heartbeat()), pickle.HIGHEST_PROTOCOL)
            send(REPORT.pack(len(body), batch.first, self._next_call(), batch.urgent) + body, batch.urgent)
            sent, wait_s = batch.first + len(batch.entries), self._beat_s


def begin(
    reporter: Reporter,
    calls: CallHandler,
    secret: bytes,
    member: int,
    node: str,
    crash_record: int,  # its descriptor
) -> None:
    """Have it report to the relay of this node from now on, and hear the driver's calls, in threads."""
    relay = address(secret, node)

    def dial() -> Send:
        with contextlib.ExitStack() as held:  # closed where something raises
            connection = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            connection.connect(relay)
            if not is_own_user(connection):
                raise PermissionError("the relay is not of this user")
            connection.sendall(hello(secret, member, crash_record))
            ringing = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            listening = (connection, ringing, reporter, calls)
            threading.Thread(target=_listen, args=listening, name="calls", daemon=True).start()
            held.pop_all()

        def send(report: bytes, urgent: bool) -> None:
            connection.sendall(report)
            if urgent:
                with contextlib.suppress(BlockingIOError):  # it rings already
                    ringing.sendto(b"!", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL, bell(relay))

        return send

    threading.Thread(target=reporter.serve, args=(dial,), name="reports", daemon=True).start()


def _listen(connection: socket.socket, ringing: socket.socket, reporter: Reporter, calls: CallHandler) -> None:
    with connection, ringing, connection.makefile("rb") as words, contextlib.suppress(OSError):
        while len(word := words.read(WORD.size)) == WORD.size:
            kept, number, size = WORD.unpack(word)
            reporter.kept(kept)
            if size:
                call = words.read(size)
                if len(call) < size:
                    return
                calls.hear(number, call)
