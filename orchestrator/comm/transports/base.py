"""The seam between an exchange and the wire: send, receive, poll, flush, close, abort; a deadline on each wait; three errors.

A transport belongs to one generation: one membership, one set of connections. It connects this member (its rank) with the
peers that the schedule links it to, delivers each peer's messages in the order in which they were sent, and knows nothing of
what they mean. `receive` takes the next message of one peer, which a schedule foresees; `poll` takes what has come from any,
where no schedule says who sends when. Between members that share memory a message is a notice of a few bytes, and both return
a *view* of the sender's region. Nothing is copied, and the sender must not write there before the schedule says that it was
read (rule C1; `tests/comm/topologies/test_happens_before.py` proves it for every schedule). Between hosts the bytes travel.

It does not retry, reconnect, reorder, or decide who is dead. A lost peer is an error for everyone connected to it; what that
means is the controller's business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch

from orchestrator.comm.transports.device_wire import Leaving
from orchestrator.numerics.lossless_packing import PackedVector


class Tag(NamedTuple):
    """The name of a message; `receive` names the tag it expects and anything else is a `ProtocolError`."""

    generation: int  # the number of the membership
    step: int  # the step of the run
    attempt: int  # at this step
    phase: int  # which of the step's collective operations
    chunk: int  # which part of the memory that is added up
    piece: int = 0  # of a chunk that travels in several; 0 for one that travels whole


class Received:
    """A message that was received. payload: 1-D, possibly a view of the sender's memory (not to be written); note: 64 bits
    beside it, signed. packed: the payload as it has travelled, where that is shorter, for who adds it up at once; it is
    widened when it is asked for."""

    __slots__ = ("_payload", "note", "packed")

    def __init__(self, payload: torch.Tensor | PackedVector, note: int) -> None:
        self.note = note
        self.packed = payload if isinstance(payload, PackedVector) else None
        self._payload = None if isinstance(payload, PackedVector) else payload

    @property
    def payload(self) -> torch.Tensor:
        """Raises ProtocolError where what came is nobody's payload."""
        if self._payload is None:
            assert self.packed is not None
            with intact():
                self._payload = self.packed.unpacked()
        return self._payload


class PeerLost(ConnectionError):
    """The connection with `peer` ended without a farewell: it died, or its host or the way to it is gone. A hint, not a death
    (rule C5); PeerLeft, where it said farewell.

    After this member's own `close` or `abort` its verbs raise the builtin ConnectionAbortedError instead, which accuses nobody.
    """

    def __init__(self, peer: int, why: str) -> None:
        super().__init__(f"lost contact with member {peer}: {why}")
        self.peer = peer


class PeerLeft(PeerLost):
    """`peer` has said farewell and is waited for in vain. It left for somebody else's loss, or for a reason that it tells the
    controller; this accuses nobody."""


class DeadlineExceeded(TimeoutError):
    """Nothing came from `peer` in time."""

    def __init__(self, peer: int, tag: Tag | None, waited_s: float) -> None:
        super().__init__(f"waited {waited_s:.1f} s for member {peer} ({tag})")
        self.peer = peer


class ProtocolError(AssertionError):
    """A message came that the schedule does not foresee: a fault of ours, never of a user."""


@contextmanager
def intact() -> Iterator[None]:
    """For work with what came in packed form: bytes that are none are a fault of ours."""
    try:
        yield
    except ValueError as error:
        raise ProtocolError(str(error)) from error


class Transport(Protocol):
    @property
    def sent_bytes(self) -> int:
        """The bytes of the payloads that were sent so far: those that travel, or all that the payload has if it is shared.
        Right after a `flush`."""

    def travels(self, peer: int) -> bool:
        """Whether payloads travel between this member and `peer`; both say the same. Then a large one is better sent in
        pieces: while one is on the wire, the next is made ready here and the last is used there."""

    def send(self, peer: int, tag: Tag, payload: torch.Tensor, note: int = 0, *, done: bool = False) -> None:
        """Hand a 1-D contiguous tensor to `peer`; returns at once, before `peer` has read it. done: the work that the message
        tells of is done already; else this waits for all that was begun with regions.

        A payload that lies in a region of `Regions` that the transport was given is shared, not copied: it must stay as it
        is until the schedule says it was read. Any other payload is copied before this returns.
        Raises PeerLost (PeerLeft).
        """

    def receive(self, peer: int, tag: Tag, timeout_s: float) -> Received:
        """The next message of `peer`, which must carry `tag`. While waiting, the loss of *any* connected peer that has not
        said farewell ends the wait.

        Raises PeerLost (PeerLeft), DeadlineExceeded, which leaves everything as it was, ProtocolError.
        """

    def poll(self, phases: Collection[int], timeout_s: float) -> list[tuple[int, Tag, Received]]:
        """All messages of these phases that have come, as (peer, tag, received). A message of another phase, such as an early
        vote, stays queued, and so does what its sender sent after it. Waits at most `timeout_s` for the first one; 0 only
        looks, and moves what is under way: it reads all that has come and writes what is queued. An empty list when nothing
        came.

        Order: each peer's in the order in which they were sent; peers in turn.

        Raises PeerLost for the loss of any connected peer that has not said farewell, though messages of others may have
        come. Raises PeerLeft as soon as a peer has left and nothing of it is queued, for nothing can be completed with it.
        Both take no message away.
        """

    def flush(self, timeout_s: float) -> None:
        """Wait until everything sent is on its way without this member's help. A large payload that travels as bytes moves only
        while its sender is in a verb of the transport, so an exchange ends with this before its member computes again.

        Raises PeerLost, DeadlineExceeded.
        """

    def close(self, timeout_s: float = 3.0) -> None:
        """Say farewell to all peers and close. Messages already sent still arrive, if their receivers take them within
        `timeout_s`; one that does not read may miss the farewell too. Safe to call twice."""

    def abort(self) -> None:
        """Close without farewell: to every peer this member is lost from now on. Safe to call twice."""


HOST, DEVICE = 0, 1  # kinds of memory; members whose kinds differ map nothing of each other


class Descriptor(NamedTuple):
    """The file descriptor and the size with which a peer maps a region."""

    fd: int
    size_bytes: int


class Mapped(Protocol):
    """A region of a peer in this process."""

    def tensor(self, dtype: torch.dtype, offset_bytes: int, elements: int) -> torch.Tensor:
        """A view: [elements], not to be written. Raises ValueError when that is not inside the region."""


class Regions(Protocol):
    """Memory of one member that peers on the same host can read; outlives the transports of single generations."""

    def allocate(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """A new zeroed 1-D tensor, its start on a page boundary. Raises MemoryError when the memory is not there *now*."""

    def free(self, region: torch.Tensor) -> None:
        """Give one region back, as `allocate` returned it, that no connected peer reads; an empty tensor is none."""

    def close(self) -> None:
        """Give the memory back; tensors of it must not be used any more."""


class SharableRegions(Regions, Protocol):
    """Regions as a transport over sockets shares them."""

    kind: int  # HOST or DEVICE

    @property
    def descriptors(self) -> tuple[Descriptor, ...]:
        """In the order of allocation, so that `locate` gives indices into it; they stay this object's."""

    def locate(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """(region, byte offset) of a contiguous tensor inside a region; None for others and for empty ones."""

    def map_peer(self, descriptor: Descriptor) -> Mapped:
        """Map a peer's region of the same kind read only; the descriptor stays the caller's. Raises ValueError where the
        descriptor is none of a region, RuntimeError where this process cannot have that memory."""

    def trusts(self, memory: Sequence[Mapped]) -> bool:
        """Whether this process reads the same bytes that the peer has written. memory: all regions of the peer, in order."""

    def settle(self) -> None:
        """Wait until all that this thread has begun with regions is done: a message that follows tells of it."""

    def leaving(self, payload: torch.Tensor, *, packs: bool) -> Leaving | None:
        """The maker of a message for a payload that travels from a device, in packed form or as it is. None if it is sent
        from host memory: it lies there, or is too large to be page-locked."""

    def memory_for(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """New memory for a payload that comes as bytes: [elements]."""
