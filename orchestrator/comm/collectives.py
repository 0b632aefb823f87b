"""Collective operations: every member runs its program of the schedule (`comm.topologies.schedule.program`) over a
transport.

`maximum` combines small int64 vectors by their elementwise maximum: votes, magnitudes, scalars in slots. `total` sums
the flat float64 contributions chunk by chunk; the owner of a chunk divides, casts to float32 and fingerprints it once,
and only float32 travels back. `add_up` does that for any memory, also for one of integers, whose sums stay what they
are. `gather` brings every worker's payload, of any length, to every worker. No result depends on the order of messages,
so any schedule gives the same bits.

Between hosts a chunk of a sum travels in pieces, each a message of its own that is added, finished and handed on when it has
come, while the next is on the wire. For a piece that is the program of its chunk, in the same order (`schedule.turns`).

A member reads in one pass what several peers add to a chunk, when all of it is there (`schedule.held_back`). Two kinds
of payloads it adds at once: one from another host, which takes memory here until it is added, and one that is verified, of
which it has a copy.

Memory, per member (rule C1): `contribution` is written by the compute phase. `partial` is written only by this module, and
only by members that add before they hand on. `result` is written once per sum: a member that writes the next one has heard
from everybody that the last one was read (`tests/comm/topologies/test_happens_before.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Final, NamedTuple

import torch

from orchestrator.comm.topologies.gathering import gathering, spreading
from orchestrator.comm.topologies.schedule import (
    Action,
    Add,
    Base,
    Copy,
    Finish,
    Hold,
    Region,
    Schedule,
    Send,
    held_back,
    program,
    turns,
)
from orchestrator.comm.topologies.voting import vote_schedule
from orchestrator.comm.transports.base import Received, Regions, Tag, Transport, intact
from orchestrator.numerics import cuda, exact
from orchestrator.numerics.exact import start_of
from orchestrator.numerics.layout import BLOCK, Layout

# Phases, part of every message's tag.
VOTE, SUM, EVALUATION_VOTE, EVALUATION, END, STATE_TRANSFER, ASYNC_PHASE, BARRIER, FALLBACKS, MADE = range(10)
ANSWERS, LOOK_BACK = 10, 11  # of checks
GRID_SUM, GRID_KEYS = 12, 13  # of clipped contributions
BUFFERS = 14  # that are joined
COMPRESSED = 16  # the first phase of a compression
_OF_RESULTS: Final = {torch.float32: exact.fingerprint_of, torch.int64: exact.fingerprint_of_integers}
_PIECE: Final = 64 * BLOCK  # elements of a sum that travel as one message
# Phases in which a member waits for slower ones, and after which it begins something else (`CancellableTransport.waits`).
VOTES = dict.fromkeys((VOTE, EVALUATION_VOTE, END, MADE, ANSWERS, LOOK_BACK), False)


class Memory:
    """The memory regions of one member, which outlive generations.

    sums: what kind of sums they hold. contribution: of the dtype of the sums and of the layout's size, empty for a
    server; result: of the dtype of their results, of the layout's size; partial: of the dtype of the sums, as large as
    the generations so far have needed. finished: the fingerprint of the present step's result where a worker that is
    alone has written it already, as one element of a device if nobody has looked at it; else None.
    """

    def __init__(self, layout: Layout, regions: Regions, *, sums: exact.Sums, contributes: bool = True) -> None:
        self.layout = layout
        self.sums = sums
        # One region, since a device gives memory in granules of megabytes.
        first = layout.size * sums.dtype.itemsize if contributes else 0
        whole = regions.allocate(first + layout.size * sums.result.itemsize, torch.uint8)
        # By `data` each has versions of its own: who writes one does not change the other.
        self.contribution = whole[:first].view(sums.dtype).data
        self.result = whole[first:].view(sums.result).data
        self.partial = torch.empty(0, dtype=sums.dtype)
        self.finished: int | torch.Tensor | None = None
        self._regions = regions
        self._whole = whole

    def page_lock(self) -> None:
        """Have a GPU copy contribution and result, which are in host memory, without a detour."""
        cuda.page_lock(start_of(self._whole), self._whole.nbytes)

    def suit(self, schedule: Schedule, rank: int) -> None:
        """Allocate what this member needs in a generation. Called before its peers connect, since they map the regions
        that exist then; those of the last generation are not connected any more."""
        needed = sum(place.stop - place.start for place in partial_places(self.layout, schedule, rank).values())
        if needed > self.partial.numel():
            self._regions.free(self.partial)
            self.partial = self._regions.allocate(needed, self.partial.dtype)


@dataclass(frozen=True)
class CollectiveTag:
    """When a collective call happens: the part of a tag that all its messages share."""

    generation: int
    step: int
    attempt: int
    phase: int

    def tag(self, chunk: int, piece: int = 0) -> Tag:
        return Tag(self.generation, self.step, self.attempt, self.phase, chunk, piece)


class PieceAction(NamedTuple):
    """An action on a piece of its chunk, or on the whole of it: the elements of the vector from start to stop."""

    action: Action | Hold
    piece: int
    whole: bool
    start: int
    stop: int


class Way(NamedTuple):
    """How one member adds up vectors of one size: the borders of chunks, what it does, and where its partial sums lie."""

    borders: tuple[int, ...]
    parts: tuple[PieceAction, ...]
    partial_places: dict[int, slice]

    def place(self, memory: Memory, region: Region | Base, part: PieceAction) -> torch.Tensor:
        """The memory of this part in that region."""
        if region == "partial":
            moved = self.partial_places[part.action.chunk].start - self.borders[part.action.chunk]
            return memory.partial[part.start + moved : part.stop + moved]
        whole = memory.contribution if region == "contribution" else memory.result
        return whole[part.start : part.stop]

    def base(self, memory: Memory, part: PieceAction) -> torch.Tensor | None:
        """The memory to which an Add or a Finish adds what it reads; None for nothing."""
        assert isinstance(part.action, Add | Finish)
        return None if part.action.base == "nothing" else self.place(memory, part.action.base, part)


def partial_places(layout: Layout, schedule: Schedule, rank: int) -> dict[int, slice]:
    """chunk -> the place of its sum in `partial`, for each chunk of which this member has to keep a sum."""
    borders = layout.borders(schedule.chunks)
    return _partial_places(turns(schedule, rank, only=_filled(borders)), borders)


def _partial_places(ordered: Sequence[Sequence[Action]], borders: Sequence[int]) -> dict[int, slice]:
    """As many as are needed if no payload stays where it is."""
    places: dict[int, slice] = {}
    end = 0
    for action in chain.from_iterable(held_back(ordered, _never)):
        if isinstance(action, Add) and action.chunk not in places:
            start, end = end, end + borders[action.chunk + 1] - borders[action.chunk]
            places[action.chunk] = slice(start, end)
    return places


class Exchange:
    """One member's collective operations in one generation. They raise what the transport raises: PeerLost,
    DeadlineExceeded."""

    def __init__(
        self,
        schedule: Schedule,  # who sends what to whom
        rank: int,  # this member's
        generation: int,  # its number
        transport: Transport,  # to the peers of the schedule, and of that of votes
        memory: Memory,  # what `total` adds up
        timeout_s: float,  # of each wait for a peer
        votes: Schedule | None = None,  # by which a maximum goes round; None: as among members that share memory
    ) -> None:
        self._schedule = schedule
        self._votes = votes
        self.rank = rank
        self.workers = schedule.workers  # so many, who have the first ranks
        self.generation = generation
        self._transport = transport
        self._memory = memory
        self._timeout_s = timeout_s
        self.sent_bytes = 0  # of the payloads of the calls so far, as the transport counts them
        self.members = schedule.members  # servers among them
        self._verifies = False
        self.damaged: int | None = None  # the peer from whom a part of a sum has arrived otherwise, since `verify`
        self._ways: dict[tuple[int, bool], Way] = {}
        self._way(memory.layout)

    def maximum(self, step: int, attempt: int, phase: int, vector: torch.Tensor) -> torch.Tensor:
        """The elementwise maximum of all members' int64 vectors, which have the same length; every member gets it."""
        call = CollectiveTag(self.generation, step, attempt, phase)
        current = vector.clone()
        with self._counted():
            for action in self._vote_program:
                if isinstance(action, Send):
                    self._transport.send(action.peer, call.tag(action.chunk), current)
                elif not isinstance(action, Finish):
                    received = self._transport.receive(action.peer, call.tag(action.chunk), self._timeout_s).payload
                    torch.maximum(current, received, out=current)
        return current

    def verify(self, wanted: bool) -> None:
        """From now on, whether each part of a sum is fingerprinted where it is sent, and, before it is used, where it has
        arrived. All members say the same."""
        self._verifies, self.damaged = wanted, None

    def total(self, step: int, attempt: int, divisor: float) -> int:
        """`add_up` of the memory that this exchange was made with."""
        return self.add_up(self._memory, step, attempt, SUM, divisor)

    def add_up(self, memory: Memory, step: int, attempt: int, phase: int, divisor: float = 1.0) -> int:
        """Sum all contributions into `memory.result`, divided by `divisor`; returns the result's fingerprint. All members bring
        memories of one size and one kind of sums, which suit this generation."""
        if memory.finished is not None:
            memory.finished = int(memory.finished)  # a device is asked once
            return exact.wrap(memory.finished)
        call = CollectiveTag(self.generation, step, attempt, phase)
        with self._counted():
            return self._add_up(memory, call, self._way(memory.layout), divisor)

    def _add_up(self, memory: Memory, call: CollectiveTag, way: Way, divisor: float) -> int:
        prints: defaultdict[int, dict[int, int]] = defaultdict(dict)  # by chunk and piece
        held: defaultdict[tuple[int, int], list[Received]] = defaultdict(list)  # the same: what is still to be added
        for part in way.parts:
            action = part.action
            chunk, tag = action.chunk, call.tag(action.chunk, part.piece)
            if isinstance(action, Send):
                payload = way.place(memory, action.region, part)
                unfinished = self._verifies and action.region != "result"
                note = exact.fingerprint_of_sums(payload) if unfinished else _note(part, prints)
                self._transport.send(action.peer, tag, payload, note)
            elif isinstance(action, Finish):
                prints[chunk][part.piece] = _finish(way, memory, part, divisor, held.pop((chunk, part.piece), []))
            else:
                received = self._transport.receive(action.peer, tag, self._timeout_s)
                if isinstance(action, Copy):
                    # A device takes it while the next message is waited for.
                    result = way.place(memory, "result", part)
                    result.copy_(received.payload, non_blocking=True)
                    prints[chunk][part.piece] = received.note
                    fingerprint_of = _OF_RESULTS.get(result.dtype)
                    if self._verifies and fingerprint_of is not None:
                        self._compare(action.peer, received.note, fingerprint_of(result, part.start // BLOCK))
                    continue
                if self._verifies:
                    received = self._taken(action.peer, received)
                held[chunk, part.piece].append(received)
                if isinstance(action, Add):
                    _add(way, memory, part, held.pop((chunk, part.piece)))
        return exact.wrap(sum(sum(of_pieces.values()) for of_pieces in prints.values()))

    def _taken(self, peer: int, received: Received) -> Received:
        """A verified copy of the payload. The payload is read once, so the bytes that are used are those that were verified."""
        taken = received.payload.clone()
        self._compare(peer, received.note, exact.fingerprint_of_sums(taken))
        return Received(taken, received.note)

    def _compare(self, peer: int, sent: int, arrived: int) -> None:
        if self.damaged is None and exact.wrap(arrived) != sent:
            self.damaged = peer

    def gather(self, step: int, attempt: int, phase: int, payload: torch.Tensor) -> list[torch.Tensor]:
        """Every worker's payload, by rank; nothing for a server, which only forwards and whose own payload is not sent.

        payload: uint8, 1-D, contiguous, as long as each worker likes; not in a region, for nothing tells when peers have read
        it there. Neither the payload nor the tensors that come back may be written to until all of them were used.
        """
        held = self.spread(step, attempt, phase, {self.rank: payload}, self._gather_program)
        return [held[worker] for worker in range(self.workers)] if self.rank < self.workers else []

    def ways(self, owned: Sequence[Collection[int]], needed: Mapping[int, Collection[int]]) -> tuple[Action, ...]:
        """This member's program of a `spreading`."""
        return program(spreading(self._schedule, owned, needed), self.rank)

    def spread(
        self, step: int, attempt: int, phase: int, own: Mapping[int, torch.Tensor], actions: Sequence[Action]
    ) -> dict[int, torch.Tensor]:
        """The payloads that this member needs or hands on, with its own. actions: its `ways`; own: by number, each as `gather`
        wants them."""
        call = CollectiveTag(self.generation, step, attempt, phase)
        held = dict(own)
        with self._counted():
            for action in actions:
                if isinstance(action, Send):
                    self._transport.send(action.peer, call.tag(action.chunk), held[action.chunk])
                elif not isinstance(action, Finish):
                    tag = call.tag(action.chunk)
                    held[action.chunk] = self._transport.receive(action.peer, tag, self._timeout_s).payload
        return held

    @cached_property
    def _vote_program(self) -> tuple[Action, ...]:
        return program(self._votes or vote_schedule(self.members), self.rank)

    @cached_property
    def _gather_program(self) -> tuple[Action, ...]:
        return program(gathering(self._schedule), self.rank)

    def _way(self, layout: Layout) -> Way:
        key = layout.size, self._verifies
        if key not in self._ways:
            borders, travels = layout.borders(self._schedule.chunks), self._transport.travels
            ordered = turns(self._schedule, self.rank, only=_filled(borders))
            # A payload that travels takes memory here, and so does the copy of one that is verified.
            held = held_back(ordered, _never if self._verifies else lambda peer: not travels(peer))
            parts = tuple(part for turn in held for part in _parts(turn, borders, travels))
            self._ways[key] = Way(borders, parts, _partial_places(ordered, borders))
        return self._ways[key]

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """One call: what it has sent goes on its way before it returns, and is counted."""
        before = self._transport.sent_bytes
        yield
        self._transport.flush(self._timeout_s)
        self.sent_bytes += self._transport.sent_bytes - before


class _Placed(NamedTuple):
    """An action of a turn: it goes in so many pieces, of which one is done in each beat from `first` on."""

    action: Action | Hold
    whole: bool
    first: int
    pieces: int

    @property
    def last(self) -> int:
        return self.first + self.pieces - 1


def _parts(
    turn: Sequence[Action | Hold], borders: Sequence[int], travels: Callable[[int], bool]
) -> Iterator[PieceAction]:
    """A turn piece by piece, beat by beat. Payloads that do not travel go whole."""
    placed: list[_Placed] = []
    for action in turn:
        if isinstance(action, Finish):  # with the addition before it, which is of its chunk
            before = placed[-1] if placed and placed[-1].action.chunk == action.chunk else None
            placed.append(before._replace(action=action) if before else _Placed(action, True, 0, 1))
        else:
            count = _pieces(borders, action.chunk) if travels(action.peer) else 1
            whole = count == 1
            placed.append(_Placed(action, whole, _first_beat(action, whole, placed), count))
    for beat in range(max((each.last + 1 for each in placed), default=0)):
        for action, whole, first, pieces in placed:
            if first <= beat < first + pieces:
                yield _part(action, beat - first, whole, borders)


def _first_beat(action: Send | Hold | Add | Copy, whole: bool, placed: Sequence[_Placed]) -> int:
    """After what was done with its chunk before, piece by piece where both go in pieces; and between two members one message
    after the other, in the order that both know."""
    first = 0
    for each in placed:
        other = each.action
        if other.chunk == action.chunk:
            first = max(first, each.last if whole else each.first)
        alike = isinstance(other, Send) == isinstance(action, Send)
        if alike and not isinstance(other, Finish) and other.peer == action.peer:
            first = max(first, each.last)
    return first


def _never(_peer: int) -> bool:
    return False


def _filled(borders: tuple[int, ...]) -> frozenset[int]:
    """The chunks that are not empty; a small model leaves some empty."""
    return frozenset(chunk for chunk in range(len(borders) - 1) if borders[chunk] < borders[chunk + 1])


def _part(action: Action | Hold, piece: int, whole: bool, borders: Sequence[int]) -> PieceAction:
    start, end = borders[action.chunk], borders[action.chunk + 1]
    if whole:
        return PieceAction(action, piece, whole, start, end)
    start += piece * _PIECE
    return PieceAction(action, piece, whole, start, min(start + _PIECE, end))


def _pieces(borders: Sequence[int], chunk: int) -> int:
    return -(-(borders[chunk + 1] - borders[chunk]) // _PIECE)


def _note(part: PieceAction, prints: Mapping[int, Mapping[int, int]]) -> int:
    """The note that travels beside a part: its fingerprint, once it is finished, or 0."""
    of_pieces = prints.get(part.action.chunk, {})
    return exact.wrap(sum(of_pieces.values())) if part.whole else of_pieces.get(part.piece, 0)


def _finish(way: Way, memory: Memory, part: PieceAction, divisor: float, held: Sequence[Received]) -> int:
    sums, result, first_block = memory.sums, way.place(memory, "result", part), part.start // BLOCK
    base, packed = way.base(memory, part), held[0].packed if held else None
    if base is not None and packed is not None and sums is exact.MEANS:
        with intact():
            return packed.finish(base, divisor, result, first_block)
    if base is not None and packed is not None and sums.unpack is not None:
        there = torch.empty_like(base)
        with intact():
            sums.unpack(packed, None, there)
        return sums.finish([base, there], divisor, result, first_block)
    return sums.finish(_read(base, held), divisor, result, first_block)


def _add(way: Way, memory: Memory, part: PieceAction, held: Sequence[Received]) -> None:
    sums, partial = memory.sums, way.place(memory, "partial", part)
    base, packed = way.base(memory, part), held[0].packed
    with intact():
        if packed is not None and sums.unpack is not None:
            sums.unpack(packed, base, partial)
        elif packed is not None and base is None:
            packed.unpacked(partial)
        elif packed is not None and base is not None and sums is exact.MEANS:
            packed.added(base, partial)
        else:
            sums.join(_read(base, held), partial)


def _read(base: torch.Tensor | None, held: Sequence[Received]) -> list[torch.Tensor]:
    """The parts of the sum, in the order in which they are added up."""
    return [*([] if base is None else [base]), *(each.payload for each in held)]
