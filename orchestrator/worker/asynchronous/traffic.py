"""Deltas between the members of one generation, on the routes of its topology: sent, handed on, and ended with a bell.

A member that ends its async phase rings: it sends a bell to all its peers, and nothing of the async phase after that. A
member that has rung and heard the bell of every peer has nothing of the async phase left in any of its links, and votes. One
bell makes everybody ring, so a sync barrier needs no agreement beforehand.

Memory: an origin's delta lies in one of its slots until everybody has acknowledged it, which the window sees to. A member
that hands a delta on keeps it in a slot of its own as long. So a slice may be read where it lies.
"""

from __future__ import annotations

from typing import Final, Protocol

import torch

from orchestrator.comm.collectives import ASYNC_PHASE
from orchestrator.comm.topologies.routes import Routes
from orchestrator.comm.transports.base import DeadlineExceeded, Received, Regions, Tag, Transport
from orchestrator.numerics.fixed_point import FixedPoint
from orchestrator.numerics.layout import Layout
from orchestrator.worker.asynchronous.deltas import APPLIED, BELL, DELTA, Header, window_of
from orchestrator.worker.asynchronous.held_slice import HeldSlice
from orchestrator.worker.between_steps.timing import Patience

_HEADER: Final = 0  # notes: what a message of an async phase is
_SLICE: Final = 1
_GRID: Final = 2  # for who holds a slice: how parameters are represented, and
_BASE: Final = 3  # what they are at the last sync barrier
_PHASES: Final = (ASYNC_PHASE,)


class Into(Protocol):
    """The receiver of what comes: a worker applies it, a server holds it."""

    def header(self, header: Header) -> None:
        """A header has come."""

    def part(self, origin: int, number: int, part: int, payload: torch.Tensor) -> None:
        """A slice has come, after its header."""


class DeltaMemory:
    """The memory for deltas of one member, which outlives generations. window: how many of its own it has room for; pending:
    updates that are not sent yet, of which no peer knows."""

    def __init__(self, layout: Layout, regions: Regions, *, sends: bool = True) -> None:
        self.layout = layout
        self.window = window_of(layout.size)
        self._own = regions.allocate(self.window * layout.size if sends else 0, torch.int64)
        self._relayed = torch.empty(0, dtype=torch.int64)
        self.pending = torch.zeros_like(self._own[: layout.size])
        self._regions = regions

    def suit(self, routes: Routes, member: int) -> None:
        """Allocate what this member needs in a generation; before its peers connect."""
        self.borders = self.layout.borders(routes.slices)
        self._places: dict[tuple[int, int], int] = {}
        needed = 0
        for origin, part in routes.relays(member):
            self._places[origin, part] = needed
            needed += self.window * self._size(part)
        if needed > self._relayed.numel():
            self._regions.free(self._relayed)
            self._relayed = self._regions.allocate(needed, torch.int64)

    def outgoing(self, number: int) -> torch.Tensor:
        """The memory of this member's delta of that number, whole."""
        start = number % self.window * self.layout.size
        return self._own[start : start + self.layout.size]

    def relayed(self, origin: int, part: int, number: int) -> torch.Tensor:
        """The memory in which this member keeps a slice that it hands on."""
        start = self._places[origin, part] + number % self.window * self._size(part)
        return self._relayed[start : start + self._size(part)]

    def _size(self, part: int) -> int:
        return self.borders[part + 1] - self.borders[part]


class Traffic:
    """One member's messages of one async phase."""

    def __init__(
        self,
        transport: Transport,  # of this generation
        routes: Routes,  # by which deltas reach all members
        member: int,  # this member's rank
        generation: int,  # its number
        async_phase: int,  # its number, which is that of the rest that it ends with
        memory: DeltaMemory,  # where deltas lie while they are on their way
    ) -> None:
        self._transport = transport
        self._routes = routes
        self._member = member
        self._generation = generation
        self._async_phase = async_phase
        self.memory = memory
        self._numbers: dict[tuple[int, int], int] = {}  # of the delta whose slice comes next, by origin and slice
        self._ended: set[int] = set()

    @property
    def rung(self) -> bool:
        """Whether a bell was heard, or rung here."""
        return bool(self._ended)

    def send(self, header: Header) -> None:
        """Send a delta that lies in this member's slot, or an acknowledgement."""
        encoded = header.encode()
        if header.kind == APPLIED:
            part = self._member % self._routes.slices
            self._pass_on(self._member, part, encoded, _HEADER)
            return
        delta, borders = self.memory.outgoing(header.number), self.memory.borders
        for part in range(self._routes.slices):
            self._pass_on(self._member, part, encoded, _HEADER)
            self._pass_on(self._member, part, delta[borders[part] : borders[part + 1]], _SLICE)

    def take(self, shards: int, into: Into | None, timeout_s: float) -> None:
        """Take all that has come, hand on what passes through, and tell `into`. Waits at most so long for a first message.
        Raises what the transport raises."""
        for peer, tag, received in self._transport.poll(_PHASES, timeout_s):
            origin, part = tag.attempt, tag.chunk
            if received.note == _HEADER:
                self._header(peer, origin, part, Header.decode(received.payload, shards), received.payload, into)
            elif received.note == _SLICE:
                self._slice(origin, part, received.payload, into)
            else:
                _hold(into, received)

    @property
    def is_held(self) -> bool:
        """Whether servers hold slices of the parameters."""
        return self._routes.held

    def begin(self, fixed: FixedPoint, base: torch.Tensor) -> None:
        """Tell the servers from where the slices go on that they hold; one worker does. base: in memory that stays as it is
        until the rest."""
        borders = self.memory.borders
        for part in range(self._routes.slices):
            server, tag = self._routes.workers + part, self._tag(self._member, part)
            self._transport.send(server, tag, fixed.encode(), _GRID)
            self._transport.send(server, tag, base[borders[part] : borders[part + 1]], _BASE)

    def before(self, origin: int) -> int:
        """The peer from which deltas of this origin come, where they are not cut into slices."""
        return self._routes.before(self._member, origin)

    @property
    def has_peers(self) -> bool:
        return bool(self._routes.peers[self._member])

    def end(self, shards: int, patience: Patience, wait_s: float, held: HeldSlice | None = None) -> None:
        """Ring, and wait until all peers have rung; deltas that come meanwhile are dropped, for the sum of the rest has them
        all. held: what this member holds, which is still told of the last sync barrier. Raises DeadlineExceeded too, while no
        peer rings."""
        peers = self._routes.peers[self._member]
        bell = Header(BELL, self._member, 0, 0, (0,) * shards, (), ()).encode()
        for peer in peers:
            self._transport.send(peer, self._tag(self._member, 0), bell, _HEADER)
        while not self._ended.issuperset(peers):
            if patience.exhausted(len(self._ended)):
                raise DeadlineExceeded(min(set(peers) - self._ended), None, patience.limit_s)
            for peer, _, received in self._transport.poll(_PHASES, wait_s):
                if received.note == _HEADER and Header.decode(received.payload, shards).kind == BELL:
                    self._ended.add(peer)
                _hold(held, received)

    def _header(
        self, peer: int, origin: int, part: int, header: Header, payload: torch.Tensor, into: Into | None
    ) -> None:
        if header.kind == BELL:
            self._ended.add(peer)
            return
        if header.kind == DELTA:
            self._numbers[origin, part] = header.number
        self._pass_on(origin, part, payload, _HEADER)
        if into is not None:
            into.header(header)

    def _slice(self, origin: int, part: int, payload: torch.Tensor, into: Into | None) -> None:
        number = self._numbers[origin, part]
        if self._routes.onward(self._member, origin, part):
            payload = self.memory.relayed(origin, part, number).copy_(payload)
            self._pass_on(origin, part, payload, _SLICE)
        if into is not None:
            into.part(origin, number, part, payload)

    def _pass_on(self, origin: int, part: int, payload: torch.Tensor, note: int) -> None:
        for peer in self._routes.onward(self._member, origin, part):
            self._transport.send(peer, self._tag(origin, part), payload, note)

    def _tag(self, origin: int, part: int) -> Tag:
        return Tag(self._generation, self._async_phase, origin, ASYNC_PHASE, part)


def _hold(into: Into | None, received: Received) -> None:
    """Pass the grid or the base on to a receiver that holds a slice."""
    if isinstance(into, HeldSlice) and received.note in (_GRID, _BASE):
        (into.grid if received.note == _GRID else into.base)(received.payload)
