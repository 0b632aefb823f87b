"""A relay on each host, by Unix sockets: reports of its members go to the driver, and calls of the driver to them.

    member                                               relay, one for each host
    HELLO   magic, member, the descriptor of its     ->
            crash record, proof of the secret
    REPORT  bytes, numbers of the first entry and of ->
            the next call, urgent; entries and heartbeat
                                                     <-  WORD  number of the next entry: the driver has those before it;
                                                               number and bytes of a call; the call

A report costs the driver some microseconds here, where a call of Ray costs it a millisecond. On the driver's own node the relay
is an object of the driver. On every other node it is an actor that does not need torch, with one call outstanding for
all members of that node (`host_relays.py`).

A relay has no thread: its owner waits in it. Until then the kernel keeps what comes, and a member waits that sends much. A
process that ends leaves what it sent, so all of it can be read once its death is known. The relay can then also read
what it was doing, and the end of its standard error (`post_mortem.py`). A relay keeps no report: a
member sends again what the driver has not acknowledged when its relay is another one. Calls it keeps until the member has
confirmed them, which may not have connected yet.

An urgent report rings: a datagram to a second socket wakes an owner who lets reports gather.

The names of the sockets are in the abstract namespace and follow from the secret and the node, so nothing is left behind, and a
relay that takes the place of another is found without a word. Only processes of the same user are heard.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import pickle
import select
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from orchestrator.cluster.actors.calls import Unconfirmed
from orchestrator.cluster.actors.post_mortem import PostMortem, Witness
from orchestrator.common.processes import peer_credentials

HELLO: Final = struct.Struct("=4sqi32s")  # magic, member, descriptor of its crash record, proof
# bytes of the body, number of the first entry, number of the next call, whether it is urgent
REPORT: Final = struct.Struct("=Iqq?")
WORD: Final = struct.Struct(
    "=qqI"
)  # number of the next entry, number of a call, its bytes; none where there are no bytes
_MAGIC: Final = b"orc3"
_READ_BYTES: Final = 2**18
# An answer of the actor comes in parts of so many bytes. Ray puts one of 100 KB into its object store, and may never tell the
# driver where it is; then the call has no answer. Weights, reports of modules and words of the dead are larger.
PART_BYTES: Final = 2**16
MOST_PARTS: Final = 64  # of one call: with 10 MB Ray does the same


class Report(NamedTuple):
    """A report as it travels."""

    member: int  # that reports
    first: int  # number of the first of its entries
    urgent: bool  # whether it is wanted at once
    body: bytes  # entries and heartbeat, pickled by the member
    next_call: int = 0  # number of the next call: the member has those before it


Answer = tuple[list[Report], dict[int, PostMortem]]  # of the actor, pickled: reports, and members that are gone
Call = tuple[int, int, bytes]  # the member, the number of the call, and what `calls.packed` made of it


def address(secret: bytes, node: str) -> str:
    """The address of the relay of a node. Nobody can tell it who does not know the secret of the run."""
    return "\0orchestrator-" + hmac.digest(secret, b"relay" + node.encode(), "sha256").hex()[:32]


def bell(relay: str) -> str:
    """The address of the datagram socket of the relay with this address."""
    return relay + "!"


def hello(secret: bytes, member: int, crash_record: int) -> bytes:
    return HELLO.pack(_MAGIC, member, crash_record, _proof(secret, member))


def _proof(secret: bytes, member: int) -> bytes:
    return hmac.digest(secret, b"reports of %d" % member, "sha256")


def is_own_user(connection: socket.socket) -> bool:
    return peer_credentials(connection)[1] == os.geteuid()


@dataclass(eq=False)
class _Caller:
    connection: socket.socket
    member: int | None = None  # None until it has said so, and proven that it may
    unread: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)  # words for which its socket has no room yet


class HostRelay:
    """The relay of one host. One thread uses it; `wake` and `renew` may come from any other."""

    def __init__(self, secret: bytes, node: str) -> None:
        """Raises OSError where another one has the address."""
        self._secret = secret
        self._reports: list[Report] = []
        self._ended: list[int] = []
        self._callers: dict[int, _Caller] = {}  # by member
        self._calls: dict[int, Unconfirmed] = {}  # by member
        self._witnesses: dict[int, Witness] = {}  # by member
        self._has_called = False  # a member, of which nothing was read yet
        self._closing = threading.Lock()  # `_wake` is open
        self._telling = threading.Lock()  # held by who sends to a member, or ends its connection
        self._selector = selectors.DefaultSelector()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._woken = select.poll()
        self._woken.register(self._wake, select.POLLIN)
        self._woken.register(self._bell, select.POLLIN)
        try:
            self._listening.bind(address(secret, node))
            self._bell.bind(bell(address(secret, node)))
            self._listening.listen(socket.SOMAXCONN)
            self._listening.setblocking(False)
            self._selector.register(self._listening, selectors.EVENT_READ)
            self._selector.register(self._wake, selectors.EVENT_READ)
            self._selector.register(self._bell, selectors.EVENT_READ)
        except BaseException:
            self.close()
            raise

    def wake(self) -> None:
        """Have `wait` return, now or the next time."""
        with self._closing:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def wait(self, timeout_s: float, gather_s: float) -> None:
        """Until somebody wakes it or rings; up to `timeout_s` for a report, and `gather_s` more for others, which are not
        looked at."""
        if not self._read(timeout_s) and self._reports and gather_s > 0:
            self._woken.poll(1000 * gather_s)

    def wait_watchful(self, timeout_s: float, gather_s: float) -> None:
        """As `wait`, and until something urgent comes or a member ends, for which each report is looked at as it comes."""
        deadline, gathers = time.monotonic() + timeout_s, False
        while not self._read(max(0.0, deadline - time.monotonic())) and time.monotonic() < deadline:
            if self._reports and not gathers:
                gathers, deadline = True, min(deadline, time.monotonic() + gather_s)

    def take(self) -> tuple[list[Report], list[int]]:
        """All that has been sent until now, in the order of each member, and the members whose connections have ended."""
        self._read(0.0)
        if self._has_called:
            self._read(0.0)
        taken, self._reports, self._ended = (self._reports, self._ended), [], []
        return taken

    def acknowledge(self, member: int, number: int) -> None:
        """The driver has the member's entries before this number. A member that is stopped is told the next time."""
        caller = self._callers.get(member)
        if caller is not None and not caller.unsent:
            self._tell(caller, WORD.pack(number, 0, 0))

    def call(self, member: int, number: int, call: bytes) -> None:
        """Hand on a call, now or when the member connects."""
        self._calls.setdefault(member, Unconfirmed()).put(number, call)
        caller = self._callers.get(member)
        if caller is not None:
            self._tell(caller, WORD.pack(0, number, len(call)) + call)

    def renew(self) -> None:
        """Have each member hear of the driver. One whose socket is full has words enough."""
        with self._telling:
            for caller in list(self._callers.values()):
                if not caller.unsent:
                    with contextlib.suppress(OSError):
                        caller.connection.send(WORD.pack(0, 0, 0), socket.MSG_NOSIGNAL)

    def post_mortem(self, member: int) -> PostMortem:
        """The post-mortem of a member that is gone, until it is dropped."""
        witness = self._witnesses.get(member)
        return PostMortem() if witness is None else witness.tells()

    def drop(self, member: int) -> None:
        """It is gone, also where a process that it has forked holds its connection."""
        self._calls.pop(member, None)
        self._end_call_of(member)
        self._let_go_of(self._witnesses.pop(member, None))

    def close(self) -> None:
        """Safe to call twice."""
        for key in list((self._selector.get_map() or {}).values()):
            if isinstance(key.data, _Caller):
                with self._telling:
                    key.data.connection.close()
        self._callers.clear()
        while self._witnesses:
            self._let_go_of(self._witnesses.popitem()[1])
        self._listening.close()
        self._bell.close()
        self._selector.close()
        with self._closing:
            if self._wake >= 0:
                os.close(self._wake)
            self._wake = -1

    def _read(self, timeout_s: float) -> bool:
        """Read what is there. Returns whether nobody should wait for more."""
        before, hurries, self._has_called = len(self._reports), False, False
        for key, events in self._selector.select(timeout_s):
            if key.fileobj is self._listening:
                self._accept()
            elif key.fileobj is self._bell:
                hurries = True
                with contextlib.suppress(BlockingIOError):
                    while self._bell.recv(1):
                        pass
            elif key.fileobj == self._wake:
                hurries = True
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            elif key.data.connection.fileno() >= 0:  # not closed by what was read before
                if events & selectors.EVENT_WRITE:
                    self._send_rest(key.data)
                if events & selectors.EVENT_READ and not self._hear(key.data):
                    hurries = hurries or key.data.member is not None
                    self._end(key.data)
        return hurries or any(report.urgent for report in self._reports[before:])

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            while True:
                connection, _ = self._listening.accept()
                if not is_own_user(connection):
                    connection.close()
                    continue
                connection.setblocking(False)
                self._selector.register(connection, selectors.EVENT_READ, _Caller(connection))
                self._has_called = True

    def _hear(self, caller: _Caller) -> bool:
        """Read all that it has sent. Returns whether it may send more."""
        try:
            while read := caller.connection.recv(_READ_BYTES):
                caller.unread += read
                if len(read) < _READ_BYTES:
                    return self._parse(caller)
        except BlockingIOError:
            return self._parse(caller)
        except OSError:
            pass
        self._parse(caller)
        return False

    def _parse(self, caller: _Caller) -> bool:
        """Parse the bytes received so far; returns False once they show that the caller is no member."""
        unread, at = caller.unread, 0
        if caller.member is None:
            if len(unread) < HELLO.size:
                return True
            magic, member, crash_record, proof = HELLO.unpack_from(unread)
            if magic != _MAGIC or not hmac.compare_digest(proof, _proof(self._secret, member)):
                return False
            self._end_call_of(member)  # its connection before, whose end may not have been read
            caller.member, self._callers[member] = member, caller
            self._watch(caller.connection, member, crash_record)
            at = HELLO.size
            for number, call in self._calls[member].rest() if member in self._calls else ():
                self._tell(caller, WORD.pack(0, number, len(call)) + call)
        while len(unread) - at >= REPORT.size:
            size, first, next_call, urgent = REPORT.unpack_from(unread, at)
            begin = at + REPORT.size
            if len(unread) - begin < size:
                break
            at = begin + size
            self._reports.append(Report(caller.member, first, urgent, bytes(unread[begin:at]), next_call))
            if caller.member in self._calls:
                self._calls[caller.member].confirm(next_call)
        del unread[:at]
        return True

    def _watch(self, connection: socket.socket, member: int, crash_record: int) -> None:
        witness = Witness.of(peer_credentials(connection)[0], crash_record)
        if witness is not None:
            self._let_go_of(self._witnesses.get(member))
            self._witnesses[member] = witness

    @staticmethod
    def _let_go_of(witness: Witness | None) -> None:
        if witness is not None:
            witness.close()

    def _tell(self, caller: _Caller, word: bytes) -> None:
        with self._telling:
            waits = bool(caller.unsent)
            caller.unsent += word
            if not waits:
                self._flush(caller)
        if not waits and caller.unsent:
            self._selector.modify(caller.connection, selectors.EVENT_READ | selectors.EVENT_WRITE, caller)

    def _send_rest(self, caller: _Caller) -> None:
        with self._telling:
            self._flush(caller)
        if not caller.unsent:
            self._selector.modify(caller.connection, selectors.EVENT_READ, caller)

    def _flush(self, caller: _Caller) -> None:
        """Send what its socket has room for."""
        try:
            del caller.unsent[: caller.connection.send(caller.unsent, socket.MSG_NOSIGNAL)]
        except BlockingIOError:
            return
        except OSError:  # it has ended, which reading tells
            caller.unsent.clear()

    def _end_call_of(self, member: int) -> None:
        caller = self._callers.get(member)
        if caller is not None:
            self._end(caller)

    def _end(self, caller: _Caller) -> None:
        self._selector.unregister(caller.connection)
        with self._telling:
            caller.connection.close()
        if caller.member is not None and self._callers.get(caller.member) is caller:
            del self._callers[caller.member]
            self._ended.append(caller.member)


class RelayActor:
    """The relay of another node than the driver's, as an actor of Ray: `hand`, `renew` and `died` are carried out beside
    `exchange`."""

    def __init__(self, secret: bytes, node: str) -> None:
        self._relay = HostRelay(secret, node)
        self._handed = deque[Call]()
        self._dead = deque[int]()
        self._left = memoryview(b"")  # of an answer

    def hand(self, calls: list[Call]) -> None:
        """Take calls for members of this node."""
        self._handed.extend(calls)
        self._relay.wake()

    def renew(self) -> None:
        """The driver lives."""
        self._relay.renew()

    def died(self, members: list[int]) -> None:
        """The driver knows of their deaths, and wants what is known of each here: a process that one has forked may hold its
        connection."""
        self._dead.extend(members)
        self._relay.wake()

    def exchange(
        self, kept: Mapping[int, int], dropped: list[int], wait_s: float, gather_s: float
    ) -> tuple[bytes, int]:
        """Tell members what the driver has of them, and wait for reports. Returns the first part of the answer, and how many
        bytes are left for `rest`. kept: by member, the number of the next entry; dropped: members of which nothing more is
        wanted."""
        for member, number in kept.items():
            self._relay.acknowledge(member, number)
        for member in dropped:
            self._relay.drop(member)
        self._hand_on()
        self._relay.wait_watchful(wait_s, gather_s)
        self._hand_on()
        dead = [self._dead.popleft() for _ in range(len(self._dead))]
        reports, ended = self._relay.take()
        there: Answer = reports, {member: self._relay.post_mortem(member) for member in (*ended, *dead)}
        self._left = memoryview(pickle.dumps(there, pickle.HIGHEST_PROTOCOL))
        return self._part(), len(self._left)

    def rest(self, parts: int) -> Any:
        """So many parts more of the last answer; of several each is a value of its own to Ray."""
        self._hand_on()
        found = tuple(self._part() for _ in range(parts))
        return found if parts > 1 else found[0]

    def _part(self) -> bytes:
        part, self._left = bytes(self._left[:PART_BYTES]), self._left[PART_BYTES:]
        return part

    def _hand_on(self) -> None:
        for _ in range(len(self._handed)):
            self._relay.call(*self._handed.popleft())


def actor_kind(ray: Any) -> Any:
    """The class of `RelayActor` for Ray, of which no copy is made when one is lost: the driver starts another one."""
    return ray.remote(num_cpus=0, max_restarts=0, concurrency_groups={"calls": 1})(RelayActor)
