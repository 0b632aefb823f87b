"""The transport over sockets of one generation: links with all peers, one poller, no thread.

`sockets.py` connects the links and hands the transport out. `send` writes what goes at once and queues the rest. `receive`
and `poll` wait with everything that the transport has under way (reads of all peers, writes of what is queued), so no order
of sends and receives can block two members against each other. A payload in a region goes as a notice to a peer that mapped
it, and as bytes to any other.

Bytes move only while this member is in `receive`, `poll`, `flush` or `close`, for there is no thread that would do it
meanwhile.

Thread use: one thread sends, receives and closes. `abort` may come from any other thread, not from a signal handler:
it ends the connections at once, and so wakes the thread that waits, and takes the descriptors away when that thread
has let go.

It cannot make the peer read. Messages that a peer has not taken lie in this member's send queue, which has no limit of its
own: a schedule bounds it, or whatever rule says how much a member may have sent without an answer. By the same bound `poll`
comes to an end, which reads until nothing more is there.

If each member of a host has a core of its own, `receive` looks again and again for a moment before it sleeps. A message that
comes within that moment costs no waking of a core (`benchmarks.exchange`: 4 kB among 2 members).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection
from collections.abc import Mapping as ReadOnlyDict
from typing import Final

import torch

from orchestrator.comm.transports import frames, inboxes
from orchestrator.comm.transports.base import (
    DeadlineExceeded,
    PeerLeft,
    PeerLost,
    ProtocolError,
    Received,
    SharableRegions,
    Tag,
)
from orchestrator.comm.transports.device_wire import Leaving
from orchestrator.comm.transports.links import Link, Poller

_LEFT: Final = "it has left"
_CHECK_S: Final = 1.0  # how often hosts of remote peers are looked after, while waiting
_LOOKING_S: Final = 100e-6  # before sleeping: longer than waking up takes, and short beside a step
_FAREWELL: Final = frames.Frame(frames.FAREWELL, Tag(0, 0, 0, 0, 0))
FAREWELL: Final = frames.encode(_FAREWELL)


class SocketTransport:
    """Implements `base.Transport`. After `close` or `abort` on this side its verbs raise ConnectionAbortedError."""

    def __init__(self, regions: SharableRegions | None) -> None:
        self.poller = Poller()
        self._regions = regions
        self._shared = len(regions.descriptors) if regions else 0  # peers know those; later ones are copied
        self._links: dict[int, Link] = {}
        self._remote: list[Link] = []
        self._cores = len(os.sched_getaffinity(0))
        self._shared_bytes = 0
        self._next_check = 0.0
        self._using = threading.Lock()  # held by whoever sends, receives or closes
        self._ending = threading.Lock()  # guards the two below, and that the sockets are not closed yet
        self._aborted = False
        self._closed = False

    @property
    def links(self) -> ReadOnlyDict[int, Link]:
        return self._links

    def adopt(self, link: Link) -> None:
        """Only `sockets.connect` adds links, before anybody else has the transport."""
        self._links[link.peer] = link
        if link.is_remote:
            self._remote.append(link)

    @property
    def sent_bytes(self) -> int:
        return self._shared_bytes + sum(link.sent_bytes for link in self._links.values())

    @property
    def settled(self) -> bool:
        """Whether it is known of each peer how payloads go to it."""
        return all(link.settled for link in self._links.values())

    def travels(self, peer: int) -> bool:
        return self._links[peer].travels

    def send(self, peer: int, tag: Tag, payload: torch.Tensor, note: int = 0, *, done: bool = False) -> None:
        if payload.dim() != 1 or not payload.is_contiguous() or payload.device.type not in ("cpu", "cuda"):
            where = f"{payload.shape} on {payload.device}"
            raise ValueError(f"a payload is 1-D, contiguous, on the CPU or a GPU; this one: {where}")
        with self._using:
            link = self._link(peer)
            place = self._place(payload)
            shares = place is not None and not link.travels
            leaving = self._leaving(link, payload) if not shares else None
            if self._regions is not None and leaving is None and not done:
                self._regions.settle()
            if place is not None and shares:
                region, offset = place
                frame = frames.Frame(frames.REGION, tag, payload.dtype, payload.numel(), note, region, offset)
                self._shared_bytes += payload.numel() * payload.itemsize
                link.write(frame)
            else:
                frame = frames.Frame(frames.INLINE, tag, payload.dtype, payload.numel(), note)
                link.write(frame, leaving or payload.cpu(), stays=place is not None)
            if link.left or link.ended:
                self._check_open()  # it may be our own abort that ended it
                raise PeerLeft(peer, _LEFT) if link.left else PeerLost(peer, link.ended)

    def receive(self, peer: int, tag: Tag, timeout_s: float) -> Received:
        with self._using:
            link = self._link(peer)
            if not link.inbox:
                link.read()
            if not link.inbox:
                self._wait_for(link, tag, timeout_s)
            came, received = link.inbox.popleft()
        if came != tag:
            raise ProtocolError(f"expected {tag} from member {peer}, got {came}")
        return received

    def poll(self, phases: Collection[int], timeout_s: float) -> list[tuple[int, Tag, Received]]:
        deadline = time.monotonic() + timeout_s
        wait_s = 0.0
        with self._using:
            while True:
                self._check_open()
                while self._progress(wait_s):
                    wait_s = 0.0  # one frame of each peer is read at a time
                self._check_open()  # it may be our own abort that ended the links
                self.raise_losses()
                self._raise_departures()
                came = inboxes.take(((link.peer, link.inbox) for link in self._links.values()), phases)
                wait_s = deadline - time.monotonic()
                if came or wait_s <= 0:
                    return came

    def flush(self, timeout_s: float) -> None:
        """Wait until nothing that was sent needs this member any more. Call it before computing for long: what a peer
        has not taken yet stays here until `receive`, `poll`, `flush` or `close` goes on with it.

        Raises PeerLost, DeadlineExceeded.
        """
        deadline = time.monotonic() + timeout_s
        with self._using:
            while True:
                self._check_open()
                self.raise_losses()
                unsent = [link.peer for link in self._links.values() if not link.flushed]
                if not unsent:
                    return
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise DeadlineExceeded(unsent[0], None, timeout_s)
                self._progress(remaining)

    def close(self, timeout_s: float = 3.0) -> None:
        with self._using:
            if self._closed:
                return
            try:
                self._say_farewell(time.monotonic() + timeout_s)
            finally:
                self._dispose()

    def abort(self) -> None:
        with self._ending:
            if self._closed:
                return
            self._aborted = True
            for link in self._links.values():
                link.shutdown()  # which wakes the thread that waits for it, if one does
        with self._using:
            self._dispose()

    def raise_losses(self) -> None:
        """Raises PeerLost if a peer is gone without a farewell."""
        for link in self._links.values():
            if link.lost:
                raise PeerLost(link.peer, link.ended)

    def _raise_departures(self) -> None:
        """Raises PeerLeft if a peer has left and nothing of it is still to be taken."""
        for link in self._links.values():
            if link.left and not link.inbox:
                raise PeerLeft(link.peer, _LEFT)

    def _link(self, peer: int) -> Link:
        self._check_open()
        if peer not in self._links:
            raise ProtocolError(f"member {peer} is none of the peers of this transport: {sorted(self._links)}")
        return self._links[peer]

    def _place(self, payload: torch.Tensor) -> tuple[int, int] | None:
        """In which of the regions that this transport was given, and where there."""
        if not self._shared or self._regions is None:
            return None
        place = self._regions.locate(payload)
        return place if place and place[0] < self._shared else None

    def _leaving(self, link: Link, payload: torch.Tensor) -> Leaving | None:
        return self._regions.leaving(payload, packs=link.packs(payload)) if self._regions is not None else None

    def _wait_for(self, link: Link, tag: Tag, timeout_s: float) -> None:
        """Until the link's inbox holds a message. Messages that came before a loss are delivered before the loss is told."""
        began = time.monotonic()
        self._look_for(link, began + _LOOKING_S)
        while not link.inbox:
            self._check_open()
            if link.lost:
                raise PeerLost(link.peer, link.ended)
            self.raise_losses()
            if link.left:
                raise PeerLeft(link.peer, _LEFT)
            remaining = began + timeout_s - time.monotonic()
            if remaining <= 0:
                raise DeadlineExceeded(link.peer, tag, timeout_s)
            self._progress(remaining)

    def _look_for(self, link: Link, until: float) -> None:
        """Without sleeping, where that takes no core from another member."""
        if len(self._links) - len(self._remote) < self._cores:
            while not (link.inbox or link.ended) and time.monotonic() < until:
                link.read()

    def _progress(self, timeout_s: float) -> bool:
        """Whether anything was read, written or ended."""
        moved = self.poller.wait(min(timeout_s, _CHECK_S))
        if self._remote and (now := time.monotonic()) >= self._next_check:
            self._next_check = now + _CHECK_S
            for link in self._remote:
                link.check_reachable()
        return moved

    def _say_farewell(self, deadline: float) -> None:
        """Flush what was sent, and a farewell. Between hosts wait until the peers' kernels have it: closing a TCP
        socket that has unread data discards what it was still to send."""
        for link in self._links.values():
            link.write(_FAREWELL)
        pending = list(self._links.values())
        while pending and not self._aborted and (remaining := deadline - time.monotonic()) > 0:
            pending = [link for link in pending if not (link.flushed and link.acknowledged())]
            if pending:
                # Nothing wakes a waiter when the last acknowledgement comes, so between hosts this looks every few ms.
                flushed = all(link.flushed for link in pending)
                self._progress(min(remaining, 0.002) if flushed else remaining)

    def _check_open(self) -> None:
        if self._aborted or self._closed:
            raise ConnectionAbortedError("this transport is closed on this side")

    def _dispose(self) -> None:
        with self._ending:
            if self._closed:
                return
            self._closed = True
            if self._regions is not None:
                with contextlib.suppress(RuntimeError):  # a device that has failed reads nothing any more
                    self._regions.settle()
            for link in self._links.values():
                link.close()
            self.poller.close()
