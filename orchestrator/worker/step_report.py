"""The report of each member of a generation before any gradient moves: one int64 vector, combined by maximum (rule A4).

A maximum is associative and commutative, so the agreed vector is the same for every schedule and every number of
workers. Everything that has to be agreed on is encoded for that:

    failing shard     shards - shard, so that the first failing shard wins
    evaluate          1 where a member's clock says that an evaluation is due
    halt              what is requested for the end of the step, a `heartbeat.Halt`
    save              1 where a member's clock, or the controller through it, requests a checkpoint
    busy              1 where a member's writer of checkpoints is still working
    sent              bytes that a member has sent in the step before, UNKNOWN in the first of a generation
    magnitudes        bits of the largest weighted element, per tensor of the layout; ABSENT where no shard contributes
    present           1 per tensor of the layout that some shard has a gradient for, or has changed
    weights, losses   one slot per shard, the bits of a float64; EMPTY everywhere but at the shard's host
    claimants         per shard the rank that has computed it; only where shards are claimed
    checks            per shard the answers of those who computed it, the largest and the complement of the smallest, so that
                      members agree where they are equal; only in a step in which some are computed twice
    counters          each value and its complement, so that members agree where maximum == minimum; EMPTY at a member that
                      does not have it, which some are where a model is cut into stages
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy
import torch

from orchestrator.numerics.grid import ABSENT
from orchestrator.worker.member.heartbeat import Halt

_WORD_BYTES = 7  # of a word, so that none is negative
_HEAD = 5  # elements: failing shard, evaluate, halt, save, busy
UNKNOWN = -1
EMPTY = -(2**63)  # below the bits of every float64 but -0.0, which `to_slots` never produces


@dataclass(frozen=True)
class Shape:
    """The lengths of a step report, which every member of a run knows."""

    shards: int  # of the run
    tensors: int  # of the layout
    counters: int  # values of all counters
    claimed: bool = False  # whether it says which worker has computed each shard
    checked: bool = False  # whether it has the answers of a check


@dataclass(frozen=True)
class Requests:
    """The requests of a member beside the step itself; combined, what all of them will do."""

    evaluate: bool = False
    halt: Halt = Halt.NONE
    save: bool = False
    busy: bool = False


@dataclass(frozen=True)
class StepReport:
    """One member's part of the vote. A server sends the default one."""

    failing_shard: int | None = None  # the first shard that failed here; None: none
    requests: Requests = Requests()  # for the end of the step
    sent_bytes: int = UNKNOWN  # in the step before; UNKNOWN in the first of a generation
    magnitudes: Sequence[int] = ()  # bits of the largest weighted element, by tensor of the layout
    # by tensor of the layout, whether a shard here has a gradient for it, or has changed it
    present: Sequence[bool] = ()
    weights: Mapping[int, float] = field(default_factory=dict)  # by shard that was computed here
    losses: Mapping[int, float] = field(default_factory=dict)  # by shard that was computed here
    counters: Sequence[int] | None = None  # values that the shards leave; None of a member that does not have them
    computed_by: Mapping[int, int] = field(default_factory=dict)  # by shard that was claimed here, this rank
    # by shard that is computed twice, the answers from here; two of a member that is alone
    checks: Mapping[int, Sequence[int]] = field(default_factory=dict)

    def encode(self, shape: Shape) -> torch.Tensor:
        counters = [EMPTY] * (2 * shape.counters)
        if self.counters is not None:
            counters = [*self.counters, *(EMPTY if value == EMPTY else ~value for value in self.counters)]
        numbers = [
            *head(self.failing_shard, self.requests, shape),
            self.sent_bytes,
            *(self.magnitudes or [ABSENT] * shape.tensors),
            *(self.present or [False] * shape.tensors),
            *to_slots(shape.shards, self.weights),
            *to_slots(shape.shards, self.losses),
            *([self.computed_by.get(shard, EMPTY) for shard in range(shape.shards)] if shape.claimed else ()),
            *(self._answers(shape.shards) if shape.checked else ()),
            *counters,
        ]
        return torch.tensor(numbers, dtype=torch.int64)

    def _answers(self, shards: int) -> list[int]:
        given = [self.checks.get(shard, ()) for shard in range(shards)]
        least = [max((~answer for answer in answers), default=EMPTY) for answers in given]
        return [*(max(answers, default=EMPTY) for answers in given), *least]


@dataclass(frozen=True)
class Consensus:
    """The combined step reports, equal at all members."""

    failing_shard: int | None  # the first shard that failed at any member; None: none
    requests: Requests  # what all members will do at the end of the step
    sent_bytes: int  # by the member that sent most in the step before; UNKNOWN in the first of a generation
    magnitudes: list[int]  # bits of the largest weighted element, by tensor of the layout
    present: list[bool]  # by tensor of the layout, whether a shard has a gradient for it, or has changed it
    weights: dict[int, float]  # by shard that was computed
    losses: dict[int, float]  # by shard that was computed
    counters: list[int]  # the largest value of each
    disagreeing_counters: list[int]  # the indices of those of which members have different values
    # by shard, the rank that has claimed it, of several the highest
    computed_by: dict[int, int] = field(default_factory=dict)
    disputed: list[int] = field(default_factory=list)  # shards of which two answers differ

    @classmethod
    def decode(cls, vector: torch.Tensor, shape: Shape) -> Consensus:
        numbers = iter(vector.tolist())
        failing_shard, requests = read_head(numbers, shape)
        sent = next(numbers)
        claimed, checked = (shape.shards if told_of else 0 for told_of in (shape.claimed, shape.checked))
        lengths = (shape.tensors, shape.tensors, shape.shards, shape.shards, claimed, checked, checked)
        magnitudes, present, weights, losses, computed_by, most, least, high, inverted = (
            list(itertools.islice(numbers, length)) for length in (*lengths, shape.counters, shape.counters)
        )
        return cls(
            failing_shard=failing_shard,
            requests=requests,
            sent_bytes=sent,
            magnitudes=magnitudes,
            present=[one == 1 for one in present],
            weights=from_slots(weights),
            losses=from_slots(losses),
            counters=high,
            disagreeing_counters=[i for i in range(shape.counters) if high[i] != ~inverted[i] and high[i] != EMPTY],
            computed_by={shard: rank for shard, rank in enumerate(computed_by) if rank != EMPTY},
            disputed=[shard for shard in range(checked) if most[shard] != ~least[shard] and most[shard] != EMPTY],
        )

    def computed(self, shard: int) -> tuple[float, float] | None:
        """Weight and loss of a shard; None when it had nothing to compute."""
        return (self.weights[shard], self.losses[shard]) if shard in self.losses else None

    @property
    def total_weight(self) -> float:
        return math.fsum(self.weights.values())

    @property
    def first(self) -> int:
        """The first shard with a contribution; there is always one."""
        return min(self.weights)

    @property
    def loss(self) -> float:
        """The weighted mean of the shards' losses, correctly rounded and so free of order (rule A6)."""
        return math.fsum(self.losses[s] * w for s, w in self.weights.items()) / self.total_weight


def head(failing_shard: int | None, asked: Requests, shape: Shape) -> list[int]:
    """The beginning of every vote, in lockstep and at a sync barrier."""
    failing = EMPTY if failing_shard is None else shape.shards - failing_shard
    return [failing, asked.evaluate, asked.halt, asked.save, asked.busy]


def read_head(told: Iterator[int], shape: Shape) -> tuple[int | None, Requests]:
    failing, evaluate, halt, save, busy = itertools.islice(told, _HEAD)
    failing_shard = None if failing == EMPTY else shape.shards - failing
    return failing_shard, Requests(evaluate == 1, Halt(halt), save == 1, busy == 1)


def to_slots(length: int, values: Mapping[int, float]) -> list[int]:
    """`length` integers: the bits of each value at its position, EMPTY elsewhere."""
    slots = [EMPTY] * length
    for place, bits in zip(values, bits_of(values.values()), strict=True):
        slots[place] = bits
    return slots


def from_slots(slots: Sequence[int]) -> dict[int, float]:
    """The filled slots, by position."""
    filled = {place: bits for place, bits in enumerate(slots) if bits != EMPTY}
    return dict(zip(filled, floats_of(filled.values()), strict=True))


def to_words(content: bytes) -> list[int]:
    """The bytes as integers that are never EMPTY."""
    return [
        int.from_bytes(content[start : start + _WORD_BYTES], "little") for start in range(0, len(content), _WORD_BYTES)
    ]


def from_words(words: Sequence[int]) -> bytes:
    """The bytes that `to_words` was given, and zeros up to the end of the last word."""
    return b"".join(word.to_bytes(_WORD_BYTES, "little") for word in words)


def bits_of(values: Iterable[float]) -> list[int]:
    """The bits of each as a float64, as an integer; -0.0 is told as 0.0."""
    bits: list[int] = numpy.array([value + 0.0 for value in values], numpy.float64).view(numpy.int64).tolist()
    return bits


def floats_of(bits: Iterable[int]) -> list[float]:
    values: list[float] = numpy.array([*bits], numpy.int64).view(numpy.float64).tolist()
    return values
