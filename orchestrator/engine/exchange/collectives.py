"""Walking a schedule over a transport: every member runs its program (`topologies.schedule.program`) and so all get one result.

Two kinds of walk. `maximum` combines small int64 vectors by their elementwise maximum: votes, magnitudes, scalars in slots.
`total` sums the flat float64 contributions chunk by chunk; the owner of a chunk divides, casts to float32 and fingerprints it
once, and only float32 travels back. Both are free of order, so any schedule gives the same bits.

Memory, per member (rule C1): `contribution` is written by the compute phase, `partial` only by this module, and `result`
exists twice, by parity of the step, because a peer that is one step behind may still need the last one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from orchestrator.numerics import exact
from orchestrator.numerics.layout import BLOCK, Layout
from orchestrator.topologies.schedule import Action, Add, Copy, Finish, Schedule, Send, program
from orchestrator.transports.base import Regions, Tag, Transport

VOTE, SUM, EVALUATION_VOTE, EVALUATION, END, STATE_TRANSFER = range(6)  # phases, part of every message's tag


class Memory:
    """The regions of one member; allocated once per layout, they outlive generations.

    contribution, partial: float64, or float32 where sums are not exact, of the layout's size; results: two float32 tensors of the layout's size.
    finished: the fingerprint of the present step's result where a worker that is alone has written it already; else None.
    """

    def __init__(self, layout: Layout, regions: Regions, *, exact: bool) -> None:
        dtype = torch.float64 if exact else torch.float32
        self.layout = layout
        self.contribution = regions.allocate(layout.size, dtype)
        self.partial = regions.allocate(layout.size, dtype)
        self.finished: int | None = None
        self.results = (regions.allocate(layout.size, torch.float32), regions.allocate(layout.size, torch.float32))


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
        self._sum_program = program(schedule, rank, only=_filled(self._borders))
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
        """Sum all contributions into `memory.results[step % 2]`, divided by `divisor`; returns the result's fingerprint."""
        if self._memory.finished is not None:
            return exact.wrap(self._memory.finished)
        moment = Moment(self._generation, step, attempt, SUM)
        result = self._memory.results[step % 2]
        regions = {"contribution": self._memory.contribution, "partial": self._memory.partial, "result": result}
        prints: dict[int, int] = {}
        last: tuple[Add, torch.Tensor] | None = None  # what is still to be added to the chunk that is finished next
        for action, following in zip(self._sum_program, [*self._sum_program[1:], None], strict=False):
            chunk = slice(self._borders[action.chunk], self._borders[action.chunk + 1])
            if isinstance(action, Send):
                payload = regions[action.region][chunk]
                self._transport.send(action.peer, moment.tag(action.chunk), payload, prints.get(action.chunk, 0))
            elif isinstance(action, Finish):
                base = regions[last[0].base if last else action.base][chunk]
                more = last[1] if last else None
                prints[action.chunk] = exact.finish(base, divisor, result[chunk], chunk.start // BLOCK, more)
                last = None
            else:
                received = self._transport.receive(action.peer, moment.tag(action.chunk), self._timeout_s)
                if isinstance(action, Copy):
                    result[chunk].copy_(received.payload)
                    prints[action.chunk] = received.note
                elif _completes(action, following):
                    last = (action, received.payload)
                else:
                    _add(regions, action, chunk, received.payload)
        self._transport.flush(self._timeout_s)
        return exact.wrap(sum(prints.values()))

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()


def _completes(action: Add, following: Action | None) -> bool:
    """Whether this is the last addition to a chunk that is finished at once, so that both can be done in one go."""
    finishes = isinstance(following, Finish) and (following.chunk, following.base) == (action.chunk, "partial")
    return finishes and action.base != "nothing"


def _add(regions: dict[str, torch.Tensor], action: Add, chunk: slice, payload: torch.Tensor) -> None:
    partial = regions["partial"][chunk]
    if action.base == "nothing":
        partial.copy_(payload)
    else:
        torch.add(regions[action.base][chunk], payload, out=partial)


def _filled(borders: tuple[int, ...]) -> frozenset[int]:
    """The chunks that hold anything; a small model leaves some empty."""
    return frozenset(chunk for chunk in range(len(borders) - 1) if borders[chunk] < borders[chunk + 1])
