"""Collective operations: every member runs its program of the schedule (`topologies.schedule.program`) over a
transport.

`maximum` combines small int64 vectors by their elementwise maximum: votes, magnitudes, scalars in slots. `total` sums
the flat float64 contributions chunk by chunk; the owner of a chunk divides, casts to float32 and fingerprints it once,
and only float32 travels back. `add_up` does that for any memory, also for one of integers, whose sums stay what they
are. `gather` brings every worker's payload, of any length, to every worker. No result depends on the order of messages,
so any schedule gives the same bits.

Memory, per member (rule C1): `contribution` is written by the compute phase, `partial` only by this module and only by
members that add before they hand on, and `result` once: whoever writes the next one has heard from everybody that the
last one was read (`tests/topologies/test_happens_before.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from orchestrator.engine.exchange.footprint import completes, filled, partial_places
from orchestrator.numerics import exact
from orchestrator.numerics.layout import BLOCK, Layout
from orchestrator.topologies.gathering import gathering, spreading
from orchestrator.topologies.schedule import Action, Add, Base, Copy, Finish, Region, Schedule, Send, program
from orchestrator.transports.base import Regions, Tag, Transport

# Phases, part of every message's tag.
VOTE, SUM, EVALUATION_VOTE, EVALUATION, END, STATE_TRANSFER, SPRINT, REST, HEIRS = range(9)
LATTICE, LATTICE_KEYS = 12, 13  # of clipped contributions
COMPRESSED = 16  # the first phase of a compression
# Where a member waits until the others have come as far, and does not go on with what it did (`CancellableTransport.waits`).
VOTES = dict.fromkeys((VOTE, EVALUATION_VOTE, END), False)


class Memory:
    """The memory regions of one member, which outlive generations.

    sums: what kind of sums they hold. contribution: of the dtype of the sums and of the layout's size, empty for a
    server; result: of the dtype of their results, of the layout's size; partial: of the dtype of the sums, as large as
    the generations so far have needed. finished: the fingerprint of the present step's result where a worker that is
    alone has written it already; else None.
    """

    def __init__(self, layout: Layout, regions: Regions, *, sums: exact.Sums, contributes: bool = True) -> None:
        self.layout = layout
        self.sums = sums
        self.contribution = regions.allocate(layout.size if contributes else 0, sums.dtype)
        self.result = regions.allocate(layout.size, sums.result)
        self.partial = torch.empty(0, dtype=sums.dtype)
        self.finished: int | None = None
        self._regions = regions

    def suit(self, schedule: Schedule, rank: int) -> None:
        """Allocate what this member needs in a generation. Called before its peers connect, since they map the regions
        that exist then; those of the last generation are not connected any more."""
        needed = sum(place.stop - place.start for place in partial_places(self.layout, schedule, rank).values())
        if needed > self.partial.numel():
            self._regions.free(self.partial)
            self.partial = self._regions.allocate(needed, self.partial.dtype)


@dataclass(frozen=True)
class Moment:
    """When a collective call happens: the part of a tag that all its messages share."""

    generation: int
    step: int
    attempt: int
    phase: int

    def tag(self, chunk: int) -> Tag:
        return Tag(self.generation, self.step, self.attempt, self.phase, chunk)


class Way(NamedTuple):
    """How one member adds up vectors of one size: the borders of chunks, its actions, and where its partial sums lie."""

    borders: tuple[int, ...]
    actions: tuple[Action, ...]
    partial_places: dict[int, slice]

    def place(self, memory: Memory, region: Region | Base, chunk: int) -> torch.Tensor:
        """The memory of this chunk in that region."""
        if region == "partial":
            return memory.partial[self.partial_places[chunk]]
        whole = memory.contribution if region == "contribution" else memory.result
        return whole[self.borders[chunk] : self.borders[chunk + 1]]


class Exchange:
    """One member's collective operations in one generation. They raise what the transport raises: PeerLost,
    DeadlineExceeded.

    generation: its number. sent_bytes: of the payloads that were given to the transport so far, whether they travel or are
    shared.
    """

    def __init__(
        self, schedule: Schedule, rank: int, generation: int, transport: Transport, memory: Memory, timeout_s: float
    ) -> None:
        self._schedule = schedule
        self._rank = rank
        self.generation = generation
        self._transport = transport
        self._memory = memory
        self._timeout_s = timeout_s
        self.sent_bytes = 0
        self._ways: dict[int, Way] = {}
        self._way(memory.layout)
        # A vote is short, so it travels whole, as one chunk. A server sees only the chunks that it owns and has to know the
        # vote too, so with servers it travels as every chunk: a maximum may be taken any number of times.
        voting = range(schedule.chunks) if schedule.servers else [0]
        self._vote_program = program(schedule, rank, only=voting)

    def maximum(self, step: int, attempt: int, phase: int, vector: torch.Tensor) -> torch.Tensor:
        """The elementwise maximum of all members' int64 vectors, which have the same length; every member gets it."""
        moment = Moment(self.generation, step, attempt, phase)
        current = vector.clone()
        for action in self._vote_program:
            if isinstance(action, Send):
                self._send(action.peer, moment.tag(action.chunk), current)
            elif not isinstance(action, Finish):
                received = self._transport.receive(action.peer, moment.tag(action.chunk), self._timeout_s).payload
                torch.maximum(current, received, out=current)
        self._transport.flush(self._timeout_s)
        return current

    def total(self, step: int, attempt: int, divisor: float) -> int:
        """`add_up` of the memory that this exchange was made with."""
        return self.add_up(self._memory, step, attempt, SUM, divisor)

    def add_up(self, memory: Memory, step: int, attempt: int, phase: int, divisor: float = 1.0) -> int:
        """Sum all contributions into `memory.result`, divided by `divisor`; returns the result's fingerprint. All members bring
        memories of one size and one kind of sums, which suit this generation."""
        if memory.finished is not None:
            return exact.wrap(memory.finished)
        moment = Moment(self.generation, step, attempt, phase)
        way = self._way(memory.layout)
        prints: dict[int, int] = {}
        last: tuple[Add, torch.Tensor] | None = None  # what is still to be added to the chunk that is finished next
        for action, following in zip(way.actions, [*way.actions[1:], None], strict=False):
            chunk = action.chunk
            if isinstance(action, Send):
                payload = way.place(memory, action.region, chunk)
                self._send(action.peer, moment.tag(chunk), payload, prints.get(chunk, 0))
            elif isinstance(action, Finish):
                base = way.place(memory, last[0].base if last else action.base, chunk)
                more = last[1] if last else None
                result = way.place(memory, "result", chunk)
                prints[chunk] = memory.sums.finish(base, divisor, result, way.borders[chunk] // BLOCK, more)
                last = None
            else:
                received = self._transport.receive(action.peer, moment.tag(chunk), self._timeout_s)
                if isinstance(action, Copy):
                    way.place(memory, "result", chunk).copy_(received.payload)
                    prints[chunk] = received.note
                elif completes(action, following):
                    last = (action, received.payload)
                else:
                    _add(way, memory, action, received.payload)
        self._transport.flush(self._timeout_s)
        return exact.wrap(sum(prints.values()))

    def gather(self, step: int, attempt: int, phase: int, payload: torch.Tensor) -> list[torch.Tensor]:
        """Every worker's payload, by rank; nothing for a server, which only forwards and whose own payload is not sent.

        payload: uint8, 1-D, contiguous, as long as each worker likes; not in a region, for nothing tells when peers have read
        it there. Who may write: nobody, into the own payload and what comes back, until all of it was used.
        """
        moment = Moment(self.generation, step, attempt, phase)
        held: dict[int, torch.Tensor] = {}
        for action in self._gather_program:
            if isinstance(action, Send):
                self._send(action.peer, moment.tag(action.chunk), held[action.chunk])
            elif isinstance(action, Finish):
                held[action.chunk] = payload
            else:
                tag = moment.tag(action.chunk)
                held[action.chunk] = self._transport.receive(action.peer, tag, self._timeout_s).payload
        self._transport.flush(self._timeout_s)
        workers = self._schedule.workers
        return [held[worker] for worker in range(workers)] if self._rank < workers else []

    def ways(self, owned: Sequence[Collection[int]], needed: Mapping[int, Collection[int]]) -> tuple[Action, ...]:
        """This member's program of a `spreading`."""
        return program(spreading(self._schedule, owned, needed), self._rank)

    def spread(
        self, step: int, attempt: int, phase: int, own: Mapping[int, torch.Tensor], actions: Sequence[Action]
    ) -> dict[int, torch.Tensor]:
        """The payloads that this member needs or hands on, with its own. actions: its `ways`; own: by number, each as `gather`
        wants them."""
        moment = Moment(self.generation, step, attempt, phase)
        held = dict(own)
        for action in actions:
            if isinstance(action, Send):
                self._send(action.peer, moment.tag(action.chunk), held[action.chunk])
            elif not isinstance(action, Finish):
                tag = moment.tag(action.chunk)
                held[action.chunk] = self._transport.receive(action.peer, tag, self._timeout_s).payload
        self._transport.flush(self._timeout_s)
        return held

    @cached_property
    def _gather_program(self) -> tuple[Action, ...]:
        return program(gathering(self._schedule), self._rank)

    def _way(self, layout: Layout) -> Way:
        if layout.size not in self._ways:
            borders = layout.borders(self._schedule.chunks)
            actions = program(self._schedule, self._rank, only=filled(borders))
            self._ways[layout.size] = Way(borders, actions, partial_places(layout, self._schedule, self._rank))
        return self._ways[layout.size]

    def _send(self, peer: int, tag: Tag, payload: torch.Tensor, note: int = 0) -> None:
        self.sent_bytes += payload.numel() * payload.itemsize
        self._transport.send(peer, tag, payload, note)

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()


def _add(way: Way, memory: Memory, action: Add, payload: torch.Tensor) -> None:
    partial = way.place(memory, "partial", action.chunk)
    if action.base == "nothing":
        partial.copy_(payload)
    else:
        torch.add(way.place(memory, action.base, action.chunk), payload, out=partial)
