"""The messages of members at a sync barrier: a vote, and then the updates of the async phase, each by its host. Pure.

The vote is one int64 vector, combined by maximum, as in lockstep (`worker/step_report.py`):

    failing shard       shards - shard, so that the first failing shard wins
    evaluate, halt, save, busy   as in a step report
    clocks              per shard, its updates, from its host
    magnitudes          bits of the largest element of each statistic, per tensor of the layout; ABSENT where it is none
    counters            each value; the largest counts

The updates travel as int64 numbers: how many, then for each its shard, the bits of its loss, its fingerprint, how many readings
follow, and those as pairs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from orchestrator.numerics.exact import wrap
from orchestrator.numerics.grid import ABSENT
from orchestrator.records import trace
from orchestrator.records.clocks import AsyncPhase, Update
from orchestrator.worker.step_report import EMPTY, Requests, Shape, bits_of, floats_of, head, read_head


@dataclass(frozen=True)
class BarrierReport:
    """One member's part of the vote. A server sends the default one."""

    failing_shard: int | None = None
    requests: Requests = field(default_factory=Requests)
    clocks: Mapping[int, int] = field(default_factory=dict)
    magnitudes: Sequence[int] = ()
    counters: Sequence[int] = ()

    def encode(self, shape: Shape) -> torch.Tensor:
        numbers = [
            *head(self.failing_shard, self.requests, shape),
            *(self.clocks.get(shard, EMPTY) for shard in range(shape.shards)),
            *(self.magnitudes or [ABSENT] * shape.tensors),
            *(self.counters or [EMPTY] * shape.counters),
        ]
        return torch.tensor(numbers, dtype=torch.int64)


@dataclass(frozen=True)
class BarrierConsensus:
    """The combined reports, equal at all members."""

    failing_shard: int | None
    requests: Requests
    clocks: tuple[int, ...]
    magnitudes: list[int]
    counters: list[int]

    @classmethod
    def decode(cls, vector: torch.Tensor, shape: Shape) -> BarrierConsensus:
        numbers = iter(vector.tolist())
        failing_shard, requests = read_head(numbers, shape)
        clocks, magnitudes, counters = (
            list(itertools.islice(numbers, length)) for length in (shape.shards, shape.tensors, shape.counters)
        )
        return cls(
            failing_shard=failing_shard,
            requests=requests,
            clocks=tuple(clocks),
            magnitudes=magnitudes,
            counters=counters,
        )


class CompletedUpdate(NamedTuple):
    """An update that was made. loss: None of an empty micro-batch; fingerprint: of its integers."""

    update: Update
    loss: float | None
    fingerprint: int


def encode(made: Sequence[CompletedUpdate], added: int) -> torch.Tensor:
    """uint8, for `Exchange.gather`. added: the fingerprint of what goes into the sum of the rest beside these updates."""
    numbers = [added, len(made)]
    for done in made:
        bits = EMPTY if done.loss is None else bits_of([done.loss])[0]
        reads = done.update.reads
        numbers += [done.update.shard, bits, done.fingerprint, len(reads), *itertools.chain(*reads)]
    return torch.tensor(numbers, dtype=torch.int64).view(torch.uint8)


def decode(payload: torch.Tensor) -> tuple[list[CompletedUpdate], int]:
    numbers = iter(payload.clone().view(torch.int64).tolist())
    added, count = itertools.islice(numbers, 2)
    return [_done(numbers) for _ in range(count)], added


def _done(numbers: Iterator[int]) -> CompletedUpdate:
    shard, bits, fingerprint, count = itertools.islice(numbers, 4)
    pairs = list(itertools.islice(numbers, 2 * count))
    reads = tuple(zip(pairs[::2], pairs[1::2], strict=True))
    loss = None if bits == EMPTY else floats_of([bits])[0]
    return CompletedUpdate(Update(shard, reads), loss, fingerprint)


Carry = tuple[tuple[str | None, int], ...]


def in_order(async_phase: AsyncPhase, streams: Sequence[Sequence[CompletedUpdate]]) -> Carry:
    """Loss and fingerprint of each update of an async phase, in its canonical order, which extends what caused what."""
    clocks = list(async_phase.start)
    found: dict[tuple[int, int], CompletedUpdate] = {}
    for stream in streams:
        for done in stream:
            found[done.update.shard, clocks[done.update.shard]] = done
            clocks[done.update.shard] += 1
    ordered = [found[key] for key in async_phase.order()]
    return tuple((None if done.loss is None else done.loss.hex(), done.fingerprint) for done in ordered)


def lines(carry: Carry, steps: int, end: int, *, last: bool, per_line: int) -> tuple[tuple[trace.Line, ...], Carry]:
    """The lines of the trace from step `steps` to `end`, of `per_line` updates each, and what fills no line yet. last: the run
    ends with step `end`, whose line takes all that is left."""
    made: list[trace.Line] = []
    for step in range(steps, end):
        count = len(carry) if last and step == end - 1 else per_line
        taken, carry = carry[:count], carry[count:]
        losses = [float.fromhex(loss) for loss, _ in taken if loss is not None]
        mean = math.fsum(losses) / len(losses) if losses else 0.0
        made.append(trace.line(step, mean, wrap(sum(fingerprint for _, fingerprint in taken))))
    return tuple(made), carry
