"""Walking a schedule over a transport: every member runs its program (`topologies.schedule.program`) and so all get one result.

Two kinds of walk. `maximum` combines small int64 vectors by their elementwise maximum: votes, magnitudes, scalars in slots.
`total` sums the flat float64 contributions chunk by chunk; the owner of a chunk divides, casts to float32 and fingerprints it
once, and only float32 travels back. Both are free of order, so any schedule gives the same bits.

Memory, per member (rule C1): `contribution` is written by the compute phase, `partial` only by this module and only by members
that add before they hand on, and `result` once: whoever writes the next one has heard from everybody that the last one was read
(`tests/topologies/test_happens_before.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from orchestrator.engine.footprint import completes, filled, partial_places
from orchestrator.numerics import exact
from orchestrator.numerics.layout import BLOCK, Layout
from orchestrator.topologies.schedule import Add, Base, Copy, Finish, Region, Schedule, Send, program
from orchestrator.transports.base import Regions, Tag, Transport

VOTE, SUM, EVALUATION_VOTE, EVALUATION, END, HANDOVER = range(6)  # phases, part of every message's tag


class Memory:
    """The regions of one member; they outlive generations.

    contribution: `dtype`, of the layout's size, of a server none; result: float32, of the layout's size; partial: `dtype`, as
    much as the generations so far have needed.
    finished: the fingerprint of the present step's result where a worker that is alone has written it already; else None.
    """

    def __init__(self, layout: Layout, regions: Regions, *, dtype: torch.dtype, contributes: bool = True) -> None:
        self.layout = layout
        self.contribution = regions.allocate(layout.size if contributes else 0, dtype)
        self.result = regions.allocate(layout.size, torch.float32)
        self.partial = torch.empty(0, dtype=dtype)
        self.finished: int | None = None
        self._regions = regions

    def suit(self, schedule: Schedule, rank: int) -> None:
        """Have what this member needs in a generation. Before its peers connect, for those map the regions that are there then;
        those of the last generation are not connected any more."""
        needed = sum(place.stop - place.start for place in partial_places(self.layout, schedule, rank).values())
        if needed > self.partial.numel():
            self._regions.free(self.partial)
            self.partial = self._regions.allocate(needed, self.partial.dtype)


@dataclass(frozen=True)
class Moment:
    """When a walk happens: the part of a tag that all its messages share."""

    generation: int
    step: int
    attempt: int
    phase: int

    def tag(self, chunk: int) -> Tag:
        return Tag(self.generation, self.step, self.attempt, self.phase, chunk)


class Exchange:
    """One member's part in one generation. Raises what the transport raises: PeerLost, DeadlineExceeded."""

    def __init__(
        self, schedule: Schedule, rank: int, generation: int, transport: Transport, memory: Memory, timeout_s: float
    ) -> None:
        self._schedule = schedule
        self._rank = rank
        self._generation = generation
        self._transport = transport
        self._memory = memory
        self._timeout_s = timeout_s
        self._borders = memory.layout.borders(schedule.chunks)
        self._sum_program = program(schedule, rank, only=filled(self._borders))
        self._partial_places = partial_places(memory.layout, schedule, rank)
        # A vote is short, so it travels whole, as one chunk. A server sees only the chunks that it owns and has to know the
        # vote too, so with servers it travels as every chunk: a maximum may be taken any number of times.
        voting = range(schedule.chunks) if schedule.servers else [0]
        self._vote_program = program(schedule, rank, only=voting)

    def maximum(self, step: int, attempt: int, phase: int, vector: torch.Tensor) -> torch.Tensor:
        """The elementwise maximum of all members' int64 vectors, which have the same length; every member gets it."""
        moment = Moment(self._generation, step, attempt, phase)
        current = vector.clone()
        for action in self._vote_program:
            if isinstance(action, Send):
                self._transport.send(action.peer, moment.tag(action.chunk), current)
            elif not isinstance(action, Finish):
                received = self._transport.receive(action.peer, moment.tag(action.chunk), self._timeout_s).payload
                torch.maximum(current, received, out=current)
        self._transport.flush(self._timeout_s)
        return current

    def total(self, step: int, attempt: int, divisor: float) -> int:
        """Sum all contributions into `memory.result`, divided by `divisor`; returns the result's fingerprint."""
        if self._memory.finished is not None:
            return exact.wrap(self._memory.finished)
        moment = Moment(self._generation, step, attempt, SUM)
        prints: dict[int, int] = {}
        last: tuple[Add, torch.Tensor] | None = None  # what is still to be added to the chunk that is finished next
        for action, following in zip(self._sum_program, [*self._sum_program[1:], None], strict=False):
            chunk = action.chunk
            if isinstance(action, Send):
                self._transport.send(
                    action.peer, moment.tag(chunk), self._place(action.region, chunk), prints.get(chunk, 0)
                )
            elif isinstance(action, Finish):
                base = self._place(last[0].base if last else action.base, chunk)
                more = last[1] if last else None
                result = self._place("result", chunk)
                prints[chunk] = exact.finish(base, divisor, result, self._borders[chunk] // BLOCK, more)
                last = None
            else:
                received = self._transport.receive(action.peer, moment.tag(chunk), self._timeout_s)
                if isinstance(action, Copy):
                    self._place("result", chunk).copy_(received.payload)
                    prints[chunk] = received.note
                elif completes(action, following):
                    last = (action, received.payload)
                else:
                    self._add(action, received.payload)
        self._transport.flush(self._timeout_s)
        return exact.wrap(sum(prints.values()))

    def _add(self, action: Add, payload: torch.Tensor) -> None:
        partial = self._place("partial", action.chunk)
        if action.base == "nothing":
            partial.copy_(payload)
        else:
            torch.add(self._place(action.base, action.chunk), payload, out=partial)

    def _place(self, region: Region | Base, chunk: int) -> torch.Tensor:
        """Where this chunk lies."""
        if region == "partial":
            return self._memory.partial[self._partial_places[chunk]]
        whole = self._memory.contribution if region == "contribution" else self._memory.result
        return whole[self._borders[chunk] : self._borders[chunk + 1]]

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()
