"""What the members of a generation tell each other before any gradient moves: one int64 vector, combined by maximum (rule A4).

A maximum is associative and commutative, so the agreed vector is the same for every schedule and every number of workers.
Everything that has to be agreed is put into that form:

    failing shard     shards - shard, so that the first failing shard wins
    evaluate          1 where a member's clock says that an evaluation is due
    halt              what is asked for at the end of the step, a `pulse.Halt`
    save              1 where a member's clock, or somebody through it, asks for a checkpoint
    busy              1 where a member's writer of checkpoints still works
    magnitudes        bits of the largest weighted element, per tensor of the layout; ABSENT where no shard contributes
    present           1 per tensor of the layout that some shard has a gradient for, or has changed
    weights, losses   one slot per shard, the bits of a float64; EMPTY everywhere but at the shard's host
    counters          each value and each negated value, so that agreement is seen as maximum == minimum
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from orchestrator.engine.pulse import Halt
from orchestrator.numerics.grid import ABSENT

_HEADER = 5  # elements before the magnitudes
EMPTY = -(2**63)  # below the bits of every float64 but -0.0, which `to_slots` never produces


@dataclass(frozen=True)
class Shape:
    """The lengths that every member of a run knows: shards, tensors of the layout, counter values."""

    shards: int
    tensors: int
    counters: int


@dataclass(frozen=True)
class Wishes:
    """What a member asks of the others beside the step itself; combined, what all of them will do."""

    evaluate: bool = False
    halt: Halt = Halt.NONE
    save: bool = False
    busy: bool = False


@dataclass(frozen=True)
class Ballot:
    """One member's part. A server's ballot is the default one."""

    failing_shard: int | None = None
    wishes: Wishes = Wishes()
    magnitudes: Sequence[int] = ()
    present: Sequence[bool] = ()
    weights: Mapping[int, float] = field(default_factory=dict)
    losses: Mapping[int, float] = field(default_factory=dict)
    counters: Sequence[int] | None = None

    def encode(self, shape: Shape) -> torch.Tensor:
        failing = EMPTY if self.failing_shard is None else shape.shards - self.failing_shard
        asked = self.wishes
        header = torch.tensor([failing, asked.evaluate, asked.halt, asked.save, asked.busy], dtype=torch.int64)
        magnitudes = torch.tensor(self.magnitudes or [ABSENT] * shape.tensors, dtype=torch.int64)
        present = torch.tensor(self.present or [False] * shape.tensors, dtype=torch.int64)
        counters = torch.full((2 * shape.counters,), EMPTY, dtype=torch.int64)
        if self.counters is not None:
            values = torch.tensor(self.counters, dtype=torch.int64)
            counters = torch.cat([values, -values])
        slots = [to_slots(shape.shards, values) for values in (self.weights, self.losses)]
        return torch.cat([header, magnitudes, present, *slots, counters])


@dataclass(frozen=True)
class Agreement:
    """What all members know after the vote. weights and losses have an entry for each shard that was computed."""

    failing_shard: int | None
    wishes: Wishes
    magnitudes: list[int]
    present: list[bool]
    weights: dict[int, float]
    losses: dict[int, float]
    counters: list[int]
    disagreeing_counters: list[int]

    @classmethod
    def decode(cls, vector: torch.Tensor, shape: Shape) -> Agreement:
        lengths = [_HEADER, shape.tensors, shape.tensors, shape.shards, shape.shards, shape.counters, shape.counters]
        header, magnitudes, present, weights, losses, highest, negated = torch.split(vector, lengths)
        failing, evaluate, halt, save, busy = header.tolist()
        high, low = highest.tolist(), (-negated).tolist()
        return cls(
            failing_shard=None if failing == EMPTY else shape.shards - failing,
            wishes=Wishes(evaluate == 1, Halt(halt), save == 1, busy == 1),
            magnitudes=magnitudes.tolist(),
            present=(present == 1).tolist(),
            weights=from_slots(weights),
            losses=from_slots(losses),
            counters=high,
            disagreeing_counters=[i for i in range(shape.counters) if high[i] != low[i] and high[i] != EMPTY],
        )

    def computed(self, shard: int) -> tuple[float, float] | None:
        """Weight and loss of a shard; None when it had nothing to compute."""
        return (self.weights[shard], self.losses[shard]) if shard in self.losses else None

    @property
    def total_weight(self) -> float:
        return math.fsum(self.weights.values())

    @property
    def loss(self) -> float:
        """The weighted mean of the shards' losses, correctly rounded and so free of order (rule A6)."""
        return math.fsum(self.losses[s] * w for s, w in self.weights.items()) / self.total_weight


def to_slots(length: int, values: Mapping[int, float]) -> torch.Tensor:
    """int64 of `length`: the bits of each value at its position, EMPTY elsewhere."""
    slots = torch.full((length,), EMPTY, dtype=torch.int64)
    if values:
        bits = torch.tensor([value + 0.0 for value in values.values()], dtype=torch.float64).view(torch.int64)
        slots[torch.tensor(list(values))] = bits
    return slots


def from_slots(slots: torch.Tensor) -> dict[int, float]:
    """The filled slots, by position."""
    filled = torch.nonzero(slots != EMPTY).reshape(-1)
    return dict(zip(filled.tolist(), slots[filled].view(torch.float64).tolist(), strict=True))
