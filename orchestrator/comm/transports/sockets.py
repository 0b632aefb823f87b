"""Connecting the members of one generation over sockets: Unix sockets on one host, TCP between hosts.

    listener = Listener(secret, tcp_host=None, credentials=None)    # once per member; its addresses are told to the others
    transport = connect(listener, rank, generation, {peer: address, ...}, regions, timeout_s)

A listener outlives generations, a transport does not: a new generation has new connections (rule C2). In each pair the lower
rank dials. A caller is asked for its generation first: one of an earlier generation is refused and closed, one of a later
generation is kept until this member gets there. Then both prove the secret (`handshake.py`), and on one host exchange the
descriptors of their regions. An address is a list that JSON can carry: ["unix", name] or ["tcp", host, port]. With the run's
certificate connections over TCP are encrypted (`tls.py`). A refused caller ends nothing: the listener tells of it, and goes
on.

Unix sockets have random names in the abstract namespace: nothing in a file system, nothing left behind, gone with the
process; only processes of the same user are heard. The connection ends where the network namespace does, as a host
would.

It does not choose the address (same host: "unix"), and does not notice that a peer which is to call is dead. The one who
learns of the death calls `Listener.cancel`, and `connect` returns at once.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NoReturn

from orchestrator.comm.transports import shared_memory
from orchestrator.comm.transports.base import (
    HOST,
    DeadlineExceeded,
    Descriptor,
    Mapped,
    PeerLeft,
    PeerLost,
    ProtocolError,
    SharableRegions,
)
from orchestrator.comm.transports.handshake import (
    MAX_REGIONS,
    MIN_SECRET_BYTES,
    Hello,
    Identity,
    Offer,
    accept,
    dial,
    hear,
    refusal,
)
from orchestrator.comm.transports.handshake_socket import Handshake, Result
from orchestrator.comm.transports.links import UNREACHABLE_S, Link, Trust, is_unreachable
from orchestrator.comm.transports.socket_transport import FAREWELL, SocketTransport
from orchestrator.comm.transports.tls import Credentials, Side, Tls, buffered
from orchestrator.common.processes import peer_credentials

Address = Sequence[str | int]

_FAREWELL_S: Final = 0.2
_CHECK_S: Final = 1.0  # how often hosts that were called are looked after
_MAX_CALLERS: Final = 256  # kept for later; more than that are not members


class Listener:
    """The addresses at which a member can be reached, for as long as it lives. One thread connects; `cancel` may come from
    any other."""

    def __init__(
        self,
        secret: bytes,
        tcp_host: str | None = None,
        credentials: Credentials | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """secret: shared by the members of a run. tcp_host: the address of this host on which other hosts reach it.
        credentials: of the run, where connections over TCP are encrypted. tell: takes a line about who was refused, or is
        reached in a slower way."""
        if len(secret) < MIN_SECRET_BYTES:
            remedy = "use secrets.token_bytes(32)"
            raise ValueError(f"a secret has at least {MIN_SECRET_BYTES} bytes, this one {len(secret)}; {remedy}")
        self.secret = secret
        self.tls = None if credentials is None else Tls(credentials)
        self._tell = tell
        self._told: set[str] = set()
        self.addresses: dict[str, list[str | int]] = {}
        self.sockets: list[socket.socket] = []
        self.callers: list[Handshake[Hello]] = []  # not answered yet: of a later generation, or without a hello
        self._cancelled = -1
        self._closing = threading.Lock()  # `wake` is open
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self._listen_unix()
            if tcp_host is not None:
                self._listen_tcp(tcp_host)
        except BaseException:
            self.close()
            raise

    def cancel(self, generation: int) -> None:
        """Nobody is to wait for `generation` or an earlier one any more: `connect`, now or later, raises
        ConnectionAbortedError for it."""
        with self._closing:
            self._cancelled = max(self._cancelled, generation)
            if self.wake >= 0:
                os.eventfd_write(self.wake, 1)

    def check_cancelled(self, generation: int) -> None:
        if generation <= self._cancelled:
            raise ConnectionAbortedError(f"generation {generation} was called off")

    def close(self) -> None:
        """Callers are refused from now on; transports live on. Safe to call twice."""
        for listening in self.sockets:
            listening.close()
        for caller in self.callers:
            caller.close()
        self.sockets, self.callers = [], []
        with self._closing:
            if self.wake >= 0:
                os.close(self.wake)
            self.wake = -1

    def refused(self, host: str, why: str) -> None:
        """A caller from there was; said once for each reason."""
        self.tell(f"refused a connection from {host}: {why}")

    def tell(self, line: str) -> None:
        """Once each."""
        if self._tell is not None and line not in self._told and len(self._told) < _MAX_CALLERS:
            self._told.add(line)
            self._tell(line)

    def keep(self, caller: Handshake[Hello]) -> None:
        """For a later `connect`."""
        self.callers.append(caller)
        if len(self.callers) > _MAX_CALLERS:
            self.callers.pop(0).close()

    def _listen_unix(self) -> None:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sockets.append(listening)
        name = f"orchestrator-{secrets.token_hex(16)}"
        listening.bind(f"\0{name}")
        listening.listen(socket.SOMAXCONN)
        listening.setblocking(False)
        self.addresses["unix"] = ["unix", name]

    def _listen_tcp(self, host: str) -> None:
        listening = socket.create_server((host, 0), family=_tcp_family(host), backlog=socket.SOMAXCONN)
        self.sockets.append(listening)
        listening.setblocking(False)
        self.addresses["tcp"] = ["tcp", host, listening.getsockname()[1]]


def connect(
    listener: Listener,
    rank: int,
    generation: int,
    peers: Mapping[int, Address],
    regions: SharableRegions | None,
    timeout_s: float,
    unreachable_s: int = UNREACHABLE_S,
) -> SocketTransport:
    """Connect with all peers; each of them calls `connect` with this member among its own peers.

    A peer reached by "unix" maps the `regions` that exist now; payloads elsewhere travel as bytes.
    Raises PeerLost (a peer is gone, or its host answers nothing for `unreachable_s`), PeerLeft (it is further on, or gave up
    too), DeadlineExceeded, PermissionError (another secret or user), ConnectionAbortedError (cancelled).
    """
    me = Identity(listener.secret, generation, rank)
    return _Assembly(listener, me, regions, unreachable_s).run(peers, timeout_s)


class _Assembly:
    """One call of `connect`."""

    def __init__(self, listener: Listener, me: Identity, regions: SharableRegions | None, unreachable_s: int) -> None:
        self._listener = listener
        self._me = me
        self._unreachable_s = unreachable_s
        self._regions = regions
        self._kind = regions.kind if regions else HOST
        self._descriptors = regions.descriptors if regions else ()
        if len(self._descriptors) > MAX_REGIONS:
            raise ValueError(f"{len(self._descriptors)} regions; a peer can be given {MAX_REGIONS}")
        self._transport = SocketTransport(regions)
        self._poller = self._transport.poller
        self._greetings: set[Handshake[Hello]] = set()
        self._handshakes: set[Handshake[Offer]] = set()
        self._dialled: list[tuple[int, float, Handshake[Offer]]] = []  # whom, and when
        self._missing: set[int] = set()
        self._refused: dict[int, OSError] = {}  # by the rank that was claimed

    def run(self, peers: Mapping[int, Address], timeout_s: float) -> SocketTransport:
        self._missing = set(peers)
        try:
            try:
                self._start_accepting()
                for peer in sorted(peer for peer in peers if peer > self._me.rank):
                    self._dial(peer, peers[peer])
                self._wait(timeout_s)
            finally:
                self._stop_accepting()
        except OSError:  # a peer is gone, or nobody waits for this generation any more: not for this member's sake
            self._transport.close(_FAREWELL_S)
            raise
        except BaseException:
            self._transport.abort()
            raise
        return self._transport

    def _start_accepting(self) -> None:
        _clear(self._listener.wake)
        self._poller.watch(self._listener.wake, lambda: None)
        for listening in self._listener.sockets:
            self._poller.watch(listening.fileno(), partial(self._admit, listening))
        callers, self._listener.callers = self._listener.callers, []
        for caller in callers:
            self._hear(caller)

    def _stop_accepting(self) -> None:
        for fd in (self._listener.wake, *(listening.fileno() for listening in self._listener.sockets)):
            self._poller.forget(fd)
        for caller in self._greetings:
            self._poller.forget(caller.connection.fileno())
            self._listener.keep(caller)
        for handshake in self._handshakes:
            self._poller.forget(handshake.connection.fileno())
            if handshake.offered:
                with contextlib.suppress(OSError):
                    handshake.connection.send(FAREWELL, socket.MSG_NOSIGNAL)
            handshake.close()

    def _wait(self, timeout_s: float) -> None:
        began = time.monotonic()
        while True:
            self._listener.check_cancelled(self._me.generation)
            self._transport.raise_losses()
            for link in self._transport.links.values():
                if link.left:  # nobody leaves for a good reason before all have met
                    raise PeerLeft(link.peer, "it has left")
            if not self._missing and self._transport.settled:
                return
            remaining = began + timeout_s - time.monotonic()
            if remaining <= 0:
                late = min(self._missing or self._transport.links)
                raise self._refused.get(late) or DeadlineExceeded(late, None, timeout_s)
            self._check_reachable()
            self._poller.wait(min(remaining, _CHECK_S))

    def _check_reachable(self) -> None:
        """Between hosts: a peer whose host answers nothing is lost, as that of a link is. Raises PeerLost."""
        late = time.monotonic() - self._unreachable_s
        for peer, since, handshake in self._dialled:
            if since > late or handshake not in self._handshakes or handshake.connection.family == socket.AF_UNIX:
                continue
            if is_unreachable(handshake.connection, self._unreachable_s):
                raise PeerLost(peer, f"its host has not answered for {self._unreachable_s} s")

    def _admit(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the caller has given up
            return
        connection.setblocking(False)
        if connection.family == socket.AF_UNIX and peer_credentials(connection)[1] != os.geteuid():
            connection.close()
            return
        self._hear(Handshake(self._encrypted(connection, "acceptor", "who called"), hear()))

    def _hear(self, caller: Handshake[Hello]) -> None:
        self._greetings.add(caller)
        self._carry_on(caller, self._greetings, self._answer, partial(self._tell_refused, _host_of(caller.connection)))

    def _encrypted(self, connection: socket.socket, side: Side, peer: str) -> socket.socket:
        tls = self._listener.tls
        return connection if tls is None or connection.family == socket.AF_UNIX else tls.wrap(connection, side, peer)

    def _tell_refused(self, host: str, error: Exception) -> None:
        if isinstance(error, PermissionError | ProtocolError):
            self._listener.refused(host, str(error))

    def _answer(self, caller: Handshake[Hello]) -> None:
        hello = caller.result
        assert hello is not None
        if hello.generation > self._me.generation:
            self._listener.keep(caller)
        elif hello.generation < self._me.generation or not self._expects(hello):
            with contextlib.suppress(OSError):
                caller.connection.send(refusal(self._me, hello), socket.MSG_NOSIGNAL)
            caller.close()
        else:
            descriptors = self._offered(caller.connection)
            protocol = accept(self._me, hello, self._offer(descriptors))
            handshake = Handshake(caller.connection, protocol, descriptors)
            host = _host_of(caller.connection)
            self._begin_handshake(hello.dialer, handshake, partial(self._note, hello.dialer, host))

    def _expects(self, hello: Hello) -> bool:
        return hello.acceptor == self._me.rank and hello.dialer in self._missing and hello.dialer < self._me.rank

    def _dial(self, peer: int, address: Address) -> None:
        try:
            connection = _dialed(address)
        except OSError as error:
            _raise_as_loss(peer, error)
        connection = self._encrypted(
            connection, "dialer", f"the process that answers for member {peer} at {_shown(address)}"
        )
        descriptors = self._offered(connection)
        protocol = dial(self._me, peer, self._offer(descriptors))
        handshake = Handshake(connection, protocol, descriptors)
        self._dialled.append((peer, time.monotonic(), handshake))
        self._begin_handshake(peer, handshake, partial(_raise_as_loss, peer))

    def _offered(self, connection: socket.socket) -> tuple[Descriptor, ...]:
        return self._descriptors if connection.family == socket.AF_UNIX else ()

    def _offer(self, descriptors: Sequence[Descriptor]) -> Offer:
        return Offer(self._kind, tuple(descriptor.size_bytes for descriptor in descriptors))

    def _begin_handshake(self, peer: int, handshake: Handshake[Offer], failed: Callable[[Exception], None]) -> None:
        self._handshakes.add(handshake)
        self._carry_on(handshake, self._handshakes, partial(self._link, peer), failed)

    def _link(self, peer: int, handshake: Handshake[Offer]) -> None:
        if peer not in self._missing:  # it called twice, and the other call was faster
            handshake.close()
            return
        try:
            memory, shares = self._mapped(peer, handshake)
        except BaseException:
            handshake.close()
            raise
        handshake.close_fds()
        memory_for = None if self._regions is None else self._regions.memory_for
        link = Link(peer, handshake.connection, memory, self._poller, self._unreachable_s, shares, memory_for)
        self._transport.adopt(link)
        self._missing.discard(peer)
        if buffered(handshake.connection):
            link.read()

    def _mapped(self, peer: int, handshake: Handshake[Offer]) -> tuple[Sequence[Mapped], bool | Trust]:
        """The peer's regions, mapped, and whether both read each other's. Memory of another kind is not mapped. Memory of a
        device may be out of reach, which both tell each other; then payloads travel."""
        offer = handshake.result or Offer()
        fds = handshake.received_fds
        if len(offer.sizes) != len(fds):
            raise ProtocolError(f"{len(offer.sizes)} regions were announced and {len(fds)} descriptors came")
        if offer.kind != self._kind:
            return (), False
        map_peer = shared_memory.map_peer if self._regions is None else self._regions.map_peer
        descriptors = [Descriptor(fd, size) for fd, size in zip(fds, offer.sizes, strict=True)]
        if self._kind == HOST or self._regions is None or not offer.sizes:
            return [map_peer(descriptor) for descriptor in descriptors], True
        why = "it arrives damaged"
        try:
            memory = [map_peer(descriptor) for descriptor in descriptors]
            if self._regions.trusts(memory):
                return memory, Trust(mine=True)
        except RuntimeError as error:
            why = str(error)
        self._listener.tell(f"cannot read the memory of member {peer}'s GPU, so sums go through host memory: {why}")
        return (), Trust(mine=False)

    def _note(self, claimed: int, host: str, error: Exception) -> None:
        """Anybody can call in a member's name, so a failed caller ends nothing; the deadline tells why, if it comes."""
        self._tell_refused(host, error)
        if isinstance(error, PermissionError):
            self._refused[claimed] = error

    def _carry_on(
        self,
        handshake: Handshake[Result],
        under_way: set[Handshake[Result]],
        done: Callable[[Handshake[Result]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        fd = handshake.connection.fileno()
        try:
            if not handshake.advance():
                again = partial(self._carry_on, handshake, under_way, done, failed)
                self._poller.watch(fd, again, select.EPOLLOUT if handshake.sending else select.EPOLLIN)
                return
        except (OSError, ProtocolError) as error:
            self._poller.forget(fd)
            under_way.discard(handshake)
            handshake.close()
            failed(error)
            return
        self._poller.forget(fd)
        under_way.discard(handshake)
        done(handshake)


def _raise_as_loss(peer: int, error: Exception) -> NoReturn:
    """Raises the error of a call that failed, as PeerLeft or PeerLost if the peer is the reason. A peer that hung up was
    there to do so, and has perhaps given up."""
    if isinstance(error, OSError) and not isinstance(error, PeerLost | PermissionError):
        hung_up = isinstance(error, ConnectionResetError | BrokenPipeError)
        raise (PeerLeft if hung_up else PeerLost)(peer, str(error)) from error
    raise error


def _dialed(address: Address) -> socket.socket:
    """A socket that is connected, or connecting. Raises OSError, PermissionError among them."""
    target: str | tuple[str, int]
    match address:
        case ["unix", str(name)]:
            family, target = socket.AF_UNIX, f"\0{name}"
        case ["tcp", str(host), int(port)]:
            family, target = _tcp_family(host), (host, port)
        case _:
            raise ValueError(f'an address is ["unix", name] or ["tcp", host, port], not {list(address)}')
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        try:
            connection.connect(target)
        except BlockingIOError:
            if family == socket.AF_UNIX:  # it has more callers than it can queue; over TCP the call is just under way
                raise
        if family == socket.AF_UNIX and peer_credentials(connection)[1] != os.geteuid():
            raise PermissionError(f"{list(address)} belongs to another user")
    except BaseException:
        connection.close()
        raise
    return connection


def _shown(address: Address) -> str:
    return ":".join(map(str, address[1:]))


def _host_of(connection: socket.socket) -> str:
    """The host of a caller, for messages; one that has hung up may have none."""
    try:
        return "this host" if connection.family == socket.AF_UNIX else str(connection.getpeername()[0])
    except OSError:
        return "a host that hung up"


def _tcp_family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _clear(event: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(event)
