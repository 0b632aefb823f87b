"""One connection with one peer, and the poller that a transport's connections share. Nothing here blocks but `wait`.

A link reads frames into an inbox and writes what the socket does not take at once from a send queue, whenever the poller
says that it can. Why everything readable is read, whoever is waited for: the end of a stream stands behind its data,
and two members that send each other more than the kernel buffers would otherwise both wait for ever.

Why a process descriptor (pidfd) beside a Unix socket: a forked child of a dead peer keeps its sockets open, and then
end of file never comes (rule C5). Before a death is believed, what the socket holds is read: the peer may have said
farewell.

Why TCP_USER_TIMEOUT is not set: the kernel also ends a connection whose *living* peer does not read for that long
(zero window), and a member that computes does not read [tried: 2.5 s with a timeout of 2 s]. Keepalive finds a host
that is gone while nothing is under way; while something is, `is_unreachable` looks for unanswered retransmissions in
TCP_INFO.

Between hosts a payload of 64-bit elements travels in packed form (`numerics.lossless_packing`). If its memory stays as it is,
it is packed only when its turn on the wire comes: so nothing is copied, and what has just been packed is still in the cache
when the kernel takes it. One on a device is packed there a little before its turn (`device_wire`).

A link does not name the frames it expects, wait for one, or decide what a loss means.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

import torch

from orchestrator.comm.transports import frames
from orchestrator.comm.transports.base import Mapped, ProtocolError, Received, Tag
from orchestrator.comm.transports.device_wire import Leaving
from orchestrator.comm.transports.tls import buffered
from orchestrator.common.processes import open_pidfd
from orchestrator.numerics import lossless_packing
from orchestrator.numerics.lossless_packing import PackedVector

UNREACHABLE_S: Final = 5
"""Between hosts: a peer whose host has answered nothing for this long is lost, where nothing else is asked for."""


_MOST_PROBES, _MOST_INTERVAL_S = 127, 32767  # of keepalive: the kernel's MAX_TCP_KEEPCNT and MAX_TCP_KEEPINTVL
_MIN_PACKED_ELEMENTS: Final = 512  # fewer are not worth the pass
_AHEAD: Final = 2  # messages of a device that are made while another is on the wire; each takes page-locked memory
_KEPT_WAITING: Final = 16  # messages that lie in page-locked memory; those that come before one is taken lie elsewhere

Parts = list[memoryview]  # of one message, to be written one after the other


class _Waiting(NamedTuple):
    """A message whose turn has not come."""

    parts: Callable[[], Parts]  # makes it when it has
    begin: Callable[[], None] = lambda: None  # what can be done before


class Poller:
    """File descriptors and what to call when they are ready."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}

    def watch(self, fd: int, handler: Callable[[], None], events: int = select.EPOLLIN) -> None:
        """Call `handler` whenever `fd` is ready, has failed or has ended; the latest call for an `fd` counts."""
        if fd in self._handlers:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
        self._handlers[fd] = handler

    def forget(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def wait(self, timeout_s: float) -> bool:
        """Wait until something is ready, and call the handlers of all that is. Whether anything was."""
        ready = [(fd, self._handlers[fd]) for fd, _ in self._epoll.poll(max(0.0, timeout_s))]
        for fd, handler in ready:
            # A handler may have closed another's fd, and the number may be in use again.
            if self._handlers.get(fd) is handler:
                handler()
        return bool(ready)

    def close(self) -> None:
        self._epoll.close()
        self._handlers.clear()


@dataclass
class Trust:
    """Whether two members read each other's memory as it is. mine: what this side found; theirs: None until the peer says."""

    mine: bool
    theirs: bool | None = None


class Link:
    """The connection with a peer; owns the socket."""

    def __init__(
        self,
        peer: int,  # its rank
        connection: socket.socket,  # from now on owned by the link
        memory: Sequence[Mapped],  # the peer's regions, mapped here
        poller: Poller,  # that tells when the socket is ready
        unreachable_s: int = UNREACHABLE_S,  # between hosts: seconds without any answer after which the peer is lost
        shares: bool | Trust = True,  # on one host: whether both read each other's memory; Trust where both have to say
        memory_for: Callable[[int, torch.dtype], torch.Tensor] | None = None,  # of payloads that come; None: any
    ) -> None:
        self.peer = peer
        self._trust = shares if isinstance(shares, Trust) else Trust(shares, theirs=shares)
        self.inbox: deque[tuple[Tag, Received]] = deque()
        self.left = False
        self.ended = ""  # why nothing more comes; empty while something may
        self.is_remote = connection.family != socket.AF_UNIX
        self.memory = tuple(memory)
        self._poller = poller
        self._socket = connection
        self.sent_bytes = 0  # of payloads, as they travel, so far
        self._sending: Parts = []  # what is left of the message that is being written
        self._queue: deque[_Waiting] = deque()  # later messages
        self._memory_for = memory_for
        self._packed = torch.empty(0, dtype=torch.uint8)  # where the one that is being written was packed
        self._header = bytearray(frames.HEADER_BYTES)
        self._body: tuple[frames.Frame, torch.Tensor] | None = None  # announced by the header, being read
        self._wanted = memoryview(self._header)
        self._pidfd = None if self.is_remote else open_pidfd(connection)
        if self.is_remote:
            configure_tcp(connection, unreachable_s)
        self._unreachable_s = unreachable_s
        poller.watch(connection.fileno(), self._on_ready)
        if self._pidfd is not None:
            poller.watch(self._pidfd, self._on_death)
        if self._trust.theirs is None:
            self.write(frames.Frame(frames.TRUST, Tag(0, 0, 0, 0, 0), note=int(self._trust.mine)))

    @property
    def settled(self) -> bool:
        """Whether it is known how payloads go."""
        return self.is_remote or self._trust.theirs is not None

    @property
    def travels(self) -> bool:
        """Whether payloads go as bytes."""
        return self.is_remote or not (self._trust.mine and self._trust.theirs)

    @property
    def lost(self) -> bool:
        """It ended and no farewell had come."""
        return bool(self.ended) and not self.left

    @property
    def flushed(self) -> bool:
        """Nothing that was written is still to be handed to the kernel."""
        return not self._sending

    def write(self, frame: frames.Frame, payload: torch.Tensor | Leaving | None = None, *, stays: bool = False) -> None:
        """Send what goes at once, and the rest as the socket takes it. payload: of an INLINE frame. stays: it lies in memory
        that stays as it is until the peer has read it; else a copy is kept of what does not go at once. Writing to a link
        that has ended does nothing."""
        if isinstance(payload, Leaving) and not stays:
            payload.begin()
        if self._sending:
            self._flush()
        if self.ended:
            return
        if self._sending:
            self._queue.append(self._waiting(frame, payload, stays))
            self._begin_next()
            return
        self._sending = self._parts(frame, payload)
        self._flush(began=True)
        if self._sending and not (stays or isinstance(payload, Leaving) or self._is_packed(payload)):
            self._sending = [memoryview(b"".join(self._sending))]

    def read(self) -> bool:
        """Read until a frame is complete (True) or the socket has nothing more (False). Data that was decrypted together is
        read as a whole, because the poller does not know of what is left of it."""
        while not self.ended:
            try:
                count = self._socket.recv_into(self._wanted)
            except BlockingIOError:
                return False
            except OSError as error:
                self._end(error.strerror or str(error))
                return False
            if count == 0:
                self._end("it closed the connection")
                return False
            self._wanted = self._wanted[count:]
            if not self._wanted and self._advance() and not buffered(self._socket):
                return True
        return False

    def drain(self) -> None:
        """Read all that the socket holds."""
        while self.read():
            pass

    def check_reachable(self) -> None:
        """Between hosts only: end the link when the peer's host has stopped answering."""
        if not self.ended and is_unreachable(self._socket, self._unreachable_s):
            self._end(f"its host has not answered for {self._unreachable_s} s")

    def acknowledged(self) -> bool:
        """Between hosts: the peer's kernel has everything (on one host that is so once it is written)."""
        return bool(self.ended) or not self.is_remote or _unacknowledged_bytes(self._socket) == 0

    def shutdown(self) -> None:
        """End the connection for both, also where a forked child holds the socket. Any thread may call this."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of descriptors and mappings; payloads that are still in use keep theirs."""
        self._end("it is closed on this side")
        self.shutdown()
        self._socket.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        self.memory = ()
        self.inbox.clear()

    def _advance(self) -> bool:
        """Called when the wanted bytes have been read: a header, or the body that a header announced. True at the end of a
        frame."""
        if self._body is not None:
            frame, payload = self._body
        else:
            frame, payload = self._begin_frame()
            if frame.kind in (frames.INLINE, frames.PACKED) and payload.numel():
                self._body, self._wanted = (frame, payload), frames.raw(payload)
                return False
        self._body, self._wanted = None, memoryview(self._header)
        if frame.kind == frames.FAREWELL:
            self.left = True
        elif frame.kind == frames.TRUST:
            self._trust.theirs = bool(frame.note)
        elif frame.kind == frames.PACKED:
            self.inbox.append((frame.tag, Received(PackedVector(payload, frame.dtype, frame.elements), frame.note)))
        else:
            self.inbox.append((frame.tag, Received(payload, frame.note)))
        return True

    def _begin_frame(self) -> tuple[frames.Frame, torch.Tensor]:
        """The frame that the header announces and its payload, or the bytes of it, which are still to be read if it travels."""
        try:
            frame = frames.decode(self._header)
            if frame.kind == frames.REGION:
                return frame, self.memory[frame.region].tensor(frame.dtype, frame.offset_bytes, frame.elements)
            if frame.kind == frames.PACKED:
                return frame, self._memory(frame.packed_bytes, torch.uint8)
            return frame, self._memory(frame.elements, frame.dtype)
        except (
            ProtocolError,
            ValueError,
            IndexError,
            RuntimeError,
            TypeError,
            OverflowError,
        ) as error:  # also no such memory
            self._end(f"it sent what is no frame: {error}")
            raise ProtocolError(f"member {self.peer} sent what is no frame: {error}") from error

    def _memory(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """The memory that a payload is read to."""
        if self._memory_for is None or len(self.inbox) >= _KEPT_WAITING:
            return torch.empty(elements, dtype=dtype)
        return self._memory_for(elements, dtype)

    def packs(self, payload: torch.Tensor) -> bool:
        """Whether a payload goes in packed form."""
        is_long = payload.numel() >= _MIN_PACKED_ELEMENTS
        return self.is_remote and is_long and payload.dtype in lossless_packing.DTYPES

    def _is_packed(self, payload: torch.Tensor | None) -> bool:
        return payload is not None and self.packs(payload)

    def _parts(self, frame: frames.Frame, payload: torch.Tensor | Leaving | None) -> Parts:
        """The message. Narrowed, it lies in memory of this link until the next one is made; one of a device in its own."""
        if isinstance(payload, Leaving):
            data = payload.data()
            self.sent_bytes += data.numel()
            if payload.packed:
                frame = frame._replace(kind=frames.PACKED, packed_bytes=data.numel())
            return [memoryview(frames.encode(frame)), frames.raw(data)]
        if payload is None or not payload.numel():
            return [memoryview(frames.encode(frame))]
        if self._is_packed(payload):
            self._packed = _at_least(frames.HEADER_BYTES + lossless_packing.most_bytes(payload.numel()), self._packed)
            return [self._packed_message(frame, payload, self._packed)]
        self.sent_bytes += payload.numel() * payload.itemsize
        return [memoryview(frames.encode(frame)), frames.raw(payload)]

    def _begin_next(self) -> None:
        for message in islice(self._queue, _AHEAD):
            message.begin()

    def _waiting(self, frame: frames.Frame, payload: torch.Tensor | Leaving | None, stays: bool) -> _Waiting:
        """The maker of the message, called when its turn comes."""
        if isinstance(payload, Leaving):
            return _Waiting(partial(self._parts, frame, payload), payload.begin)
        if payload is None or not self._is_packed(payload):
            parts = self._parts(frame, payload)
            parts = parts if stays else [memoryview(b"".join(parts))]
            return _Waiting(lambda: parts)
        if stays:
            return _Waiting(partial(self._parts, frame, payload))
        into = torch.empty(frames.HEADER_BYTES + lossless_packing.most_bytes(payload.numel()), dtype=torch.uint8)
        message = self._packed_message(frame, payload, into)
        return _Waiting(lambda: [message])

    def _packed_message(self, frame: frames.Frame, payload: torch.Tensor, into: torch.Tensor) -> memoryview:
        """Header and payload, one after the other. into: long enough."""
        size = lossless_packing.pack(payload.detach(), into[frames.HEADER_BYTES :])
        self.sent_bytes += size
        message = frames.raw(into)[: frames.HEADER_BYTES + size]
        message[: frames.HEADER_BYTES] = frames.encode(frame._replace(kind=frames.PACKED, packed_bytes=size))
        return message

    def _on_ready(self) -> None:
        if self._sending:
            self._flush()
        self.read()

    def _on_death(self) -> None:
        self.drain()
        self._end("its process has ended")

    def _flush(self, *, began: bool = False) -> None:
        """Write what the socket takes. began: nothing was under way before, so nobody waits yet for the socket to take more."""
        try:
            while self._sending:
                self._forget_sent(self._socket.sendmsg(self._sending, (), socket.MSG_NOSIGNAL))
                if not self._sending and self._queue:
                    message = self._queue.popleft()
                    self._begin_next()
                    self._sending = message.parts()
        except BlockingIOError:
            if began:
                self._poller.watch(self._socket.fileno(), self._on_ready, select.EPOLLIN | select.EPOLLOUT)
            return
        except OSError as error:
            self._fail(error)
            return
        if not began:
            self._poller.watch(self._socket.fileno(), self._on_ready)

    def _forget_sent(self, sent: int) -> None:
        while self._sending and sent >= len(self._sending[0]):
            sent -= len(self._sending.pop(0))
        if sent:
            self._sending[0] = self._sending[0][sent:]

    def _fail(self, error: OSError) -> None:
        """Nothing can be written any more; what the peer wrote before, perhaps a farewell, still counts."""
        self.drain()
        self._end(error.strerror or str(error))

    def _end(self, why: str) -> None:
        if self.ended:
            return
        self.ended = why
        self._sending = []
        self._queue.clear()
        self._poller.forget(self._socket.fileno())
        if self._pidfd is not None:
            self._poller.forget(self._pidfd)


def _at_least(size_bytes: int, memory: torch.Tensor) -> torch.Tensor:
    """The memory given, or new memory if that is too small."""
    return memory if memory.numel() >= size_bytes else torch.empty(size_bytes, dtype=torch.uint8)


def configure_tcp(connection: socket.socket, unreachable_s: int) -> None:
    """No delay for small frames; the kernel's keepalive is the heartbeat of rule C5: after a second without anything a probe
    each second, or as often as the kernel counts, and the end after `unreachable_s`, at least 2."""
    interval_s = min(_MOST_INTERVAL_S, -(-(unreachable_s - 1) // _MOST_PROBES))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
    connection.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_KEEPCNT, min(_MOST_PROBES, -(-(unreachable_s - 1) // interval_s))
    )


def is_unreachable(connection: socket.socket, unreachable_s: int) -> bool:
    """Data or probes are sent again and again, and nothing has come back for `unreachable_s`.

    Source: `struct tcp_info` in linux/tcp.h.
    """
    info = tcp_info(connection)
    retransmissions, probes = info[2], info[3]
    (last_answer_ms,) = struct.unpack_from("=I", info, 56)
    # One open probe is normal: for a peer that does not read the kernel spaces them up to two minutes apart.
    return (retransmissions >= 2 or probes >= 3) and bool(last_answer_ms >= 1000 * unreachable_s)


def tcp_info(connection: socket.socket) -> bytes:
    """Its first 60 bytes."""
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 60)


def _unacknowledged_bytes(connection: socket.socket) -> int:
    count: int = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
    return count
