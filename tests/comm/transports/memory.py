"""Members as threads of one process: the transport of tests, benchmarks, and whole runs inside one process.

It keeps the promises of the real one that a schedule could break. A payload in a region is passed by reference, so a member
that overwrites it too early spoils what its peer reads. Any other payload is copied. A message that was sent outlives its
sender. The death of any member ends everybody's wait. `Hub.kill` scripts a death.

It does not protect a region from a peer that writes there, and does not notice a thread that ended without `close`.
"""

from __future__ import annotations

import enum
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Collection

import torch

from orchestrator.comm.transports import inboxes
from orchestrator.comm.transports.base import DeadlineExceeded, PeerLeft, PeerLost, ProtocolError, Received, Tag

_PAGE_BYTES = 4096


class LocalRegions:
    """Implements `base.Regions` with ordinary memory."""

    def __init__(self) -> None:
        self._regions: list[torch.Tensor] = []

    def allocate(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        size_bytes = elements * dtype.itemsize
        try:
            pages = torch.zeros(size_bytes + _PAGE_BYTES, dtype=torch.uint8)
        except RuntimeError as error:  # what torch raises when there is no memory
            raise MemoryError(f"no memory for a region of {size_bytes} bytes") from error
        start = -pages.data_ptr() % _PAGE_BYTES
        region = pages[start : start + size_bytes].view(dtype)
        self._regions.append(region)
        return region

    def free(self, region: torch.Tensor) -> None:
        self._regions = [other for other in self._regions if other.data_ptr() != region.data_ptr()]

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a contiguous tensor lies inside a region."""
        start, end = _range(tensor)
        ranges = map(_range, self._regions)
        return any(first <= start < end <= last for first, last in ranges)

    def close(self) -> None:
        self._regions.clear()


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.itemsize


class _State(enum.Enum):
    HERE = "is here"
    LEFT = "it has left"
    LOST = "it ended without a farewell"


LEFT = _State.LEFT


class Hub:
    """Connects `members` threads: the pairs of `links`, or everybody with everybody. Make one per generation;
    `transport(rank)` once per member. travels: what `Transport.travels` answers for a pair, the smaller rank first."""

    def __init__(
        self,
        members: int,
        links: Collection[tuple[int, int]] | None = None,
        travels: Callable[[int, int], bool] = lambda _low, _high: False,
    ) -> None:
        self.travels = travels
        self.states = [_State.HERE] * members
        self.changed = threading.Condition()
        self.messages: dict[tuple[int, int], inboxes.Inbox] = {
            pair: deque()
            for pair in itertools.permutations(range(members), 2)
            if links is None or pair in links or pair[::-1] in links
        }

    def transport(self, rank: int, regions: LocalRegions | None = None) -> MemoryTransport:
        return MemoryTransport(self, rank, regions)

    def kill(self, rank: int) -> None:
        """Member `rank` dies here and now: its own verbs raise ConnectionAbortedError, its peers lose it."""
        self.end(rank, _State.LOST)

    def end(self, rank: int, state: _State) -> None:
        with self.changed:
            if self.states[rank] is _State.HERE:
                self.states[rank] = state
                self.changed.notify_all()


class MemoryTransport:
    """Implements `base.Transport`. After `close` or `abort` on this side its verbs raise ConnectionAbortedError."""

    def __init__(self, hub: Hub, rank: int, regions: LocalRegions | None) -> None:
        self._hub = hub
        self._rank = rank
        self._regions = regions
        self._inboxes = {peer: inbox for (peer, to), inbox in hub.messages.items() if to == rank}
        self.sent_bytes = 0

    def travels(self, peer: int) -> bool:
        return self._hub.travels(min(self._rank, peer), max(self._rank, peer))

    def send(self, peer: int, tag: Tag, payload: torch.Tensor, note: int = 0, *, done: bool = False) -> None:  # noqa: ARG002
        if payload.dim() != 1 or not payload.is_contiguous() or payload.device.type != "cpu":
            raise ValueError(f"a payload is 1-D, contiguous, on the CPU; this one: {payload.shape} on {payload.device}")
        shared = self._regions is not None and self._regions.holds(payload)
        self.sent_bytes += payload.numel() * payload.itemsize
        passed = payload.detach() if shared else payload.detach().clone()
        with self._hub.changed:
            self._check(peer)
            if self._hub.states[peer] is not _State.HERE:
                raise _loss(peer, self._hub.states[peer])
            self._hub.messages[self._rank, peer].append((tag, Received(passed, note)))
            self._hub.changed.notify_all()

    def receive(self, peer: int, tag: Tag, timeout_s: float) -> Received:
        began = time.monotonic()
        with self._hub.changed:
            self._check(peer)
            messages = self._inboxes[peer]
            while not messages:
                self._raise_losses(peer)
                remaining = began + timeout_s - time.monotonic()
                if remaining <= 0:
                    raise DeadlineExceeded(peer, tag, timeout_s)
                self._hub.changed.wait(remaining)
                self._check(peer)
            came, received = messages.popleft()
        if came != tag:
            raise ProtocolError(f"expected {tag} from member {peer}, got {came}")
        return received

    def poll(self, phases: Collection[int], timeout_s: float) -> list[tuple[int, Tag, Received]]:
        deadline = time.monotonic() + timeout_s
        with self._hub.changed:
            while True:
                self._check_own()
                self._raise_losses(self._rank)
                self._raise_departures()
                came = inboxes.take(self._inboxes.items(), phases)
                remaining = deadline - time.monotonic()
                if came or remaining <= 0:
                    return came
                self._hub.changed.wait(remaining)

    def flush(self, timeout_s: float) -> None:  # noqa: ARG002  nothing is ever under way
        with self._hub.changed:
            self._check_own()
            self._raise_losses(self._rank)

    def close(self, timeout_s: float = 0.0) -> None:  # noqa: ARG002  nothing has to be written
        self._hub.end(self._rank, _State.LEFT)

    def abort(self) -> None:
        self._hub.end(self._rank, _State.LOST)

    def _check_own(self) -> None:
        if self._hub.states[self._rank] is not _State.HERE:
            raise ConnectionAbortedError("this transport is closed on this side")

    def _check(self, peer: int) -> None:
        self._check_own()
        if (self._rank, peer) not in self._hub.messages:
            raise ProtocolError(f"member {peer} is none of the peers of member {self._rank}")

    def _raise_losses(self, awaited: int) -> None:
        for peer, state in ((awaited, self._hub.states[awaited]), *enumerate(self._hub.states)):
            if state is _State.LOST and (self._rank, peer) in self._hub.messages:
                raise _loss(peer, state)
        if self._hub.states[awaited] is _State.LEFT:
            raise _loss(awaited, _State.LEFT)

    def _raise_departures(self) -> None:
        """Raises PeerLeft if a peer has left and nothing of it is still to be taken."""
        for peer, inbox in self._inboxes.items():
            if self._hub.states[peer] is _State.LEFT and not inbox:
                raise _loss(peer, _State.LEFT)


def _loss(peer: int, state: _State) -> PeerLost:
    return (PeerLeft if state is _State.LEFT else PeerLost)(peer, state.value)
