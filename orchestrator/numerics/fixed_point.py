"""Parameters as integers, so that updates may be added in any order: multiples of one power of two per tensor, modulo 2**64.

    lsb = 2**(max(0, ceil(log2(max |p|))) - 44)         per tensor, for as long as replicas run free
    k = rint(p / lsb)                                   int64
    u = rint((p' - p) / divisor / lsb)                  what an optimizer's step adds

Addition of integers is free of order even where it wraps around, while a sum in float64 that leaves its range depends on the
order of its terms, which nothing records. There are 18 bits between the largest parameter and 2**62, the limit that `overflows`
tells of. Source: the design of asynchronous modes; the same idea as the grid of `exact.py`, Demmel and Nguyen (2013).

This module does not decide when the grid is chosen anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from orchestrator.numerics import exact
from orchestrator.numerics.layout import Layout, Slot

_FRACTION_BITS = 44  # below the largest value of a tensor
LIMIT: Final = 2**62
# Elements, of which an operation may keep copies: in host memory so many that these stay in a cache.
_AT_ONCE: Final = 1 << 18
_AT_ONCE_THERE: Final = 1 << 22  # on a device

Pieces = tuple[tuple[int, int, float], ...]  # (first element, end, lsb), in order


def exponent_for(largest: float) -> int:
    """The exponent of lsb for a tensor whose largest magnitude is this."""
    fraction, exponent = math.frexp(max(1.0, largest))
    return (exponent - (fraction == 0.5)) - _FRACTION_BITS


class Updating(Protocol):
    """How updates are made and added where they lie."""

    def differ(
        self, pieces: Pieces, after: torch.Tensor, before: torch.Tensor, divisor: int, into: torch.Tensor
    ) -> bool:
        """into (int64) = (after - before) / divisor; both float32. Returns False where that is not finite, or beyond the
        limit, and `into` is worth nothing then. pieces: of a `FixedPoint`."""

    def absorb(self, update: torch.Tensor, *sums: torch.Tensor) -> int:
        """Add an update to two or three sums, all int64 of whole blocks; returns the fingerprint of the update."""

    def take_in(self, update: torch.Tensor, total: torch.Tensor, fingerprint: torch.Tensor) -> None:
        """Add an update that a peer has sent to a sum, and its fingerprint to `fingerprint` (int64, one element), modulo 2**64.
        Kernels read it once, so what is added is what has the fingerprint. Nothing is waited for."""


class _Host:
    """Implements `Updating` in host memory."""

    def differ(
        self, pieces: Pieces, after: torch.Tensor, before: torch.Tensor, divisor: int, into: torch.Tensor
    ) -> bool:
        fits = [exact.differ(after[s:e], before[s:e], divisor, lsb, into[s:e]) for s, e, lsb in pieces]
        return all(fits)

    def absorb(self, update: torch.Tensor, *sums: torch.Tensor) -> int:
        return exact.absorb(update, *sums)

    def take_in(self, update: torch.Tensor, total: torch.Tensor, fingerprint: torch.Tensor) -> None:
        total += update
        fingerprint += exact.fingerprint_of_integers(update)


HOST: Final = _Host()


@dataclass(frozen=True)
class FixedPoint:
    """How one flat buffer is represented by integers. pieces: (first element, end, lsb), in order; neighbours with the same lsb
    are one piece."""

    pieces: Pieces

    @classmethod
    def of(cls, layout: Layout, exponents: Sequence[int]) -> FixedPoint:
        """The representation with one exponent for each slot. exponents: one for each slot, and what is beyond them is not
        represented."""
        pieces: list[tuple[int, int, float]] = []
        slots = layout.slots[: len(exponents)]
        ends = [*(slot.offset for slot in slots[1:]), layout.size]
        for slot, end, exponent in zip(slots, ends, exponents, strict=True):
            lsb = 2.0**exponent
            if pieces and pieces[-1][2] == lsb:
                pieces[-1] = (pieces[-1][0], end, lsb)
            else:
                pieces.append((slot.offset, end, lsb))
        return cls(tuple(pieces))

    @classmethod
    def fitting(cls, layout: Layout, values: torch.Tensor, count: int) -> FixedPoint:
        """The grid for the first `count` tensors of `values`, float32 of the layout's size."""
        return cls.of(layout, [exponent_for(each) for each in largest(layout.slots[:count], values)])

    def encode(self) -> torch.Tensor:
        """int64; powers of two as their exponents."""
        pieces = [(start, end, math.frexp(lsb)[1] - 1) for start, end, lsb in self.pieces]
        return torch.tensor(pieces, dtype=torch.int64).reshape(-1)

    @classmethod
    def decode(cls, numbers: torch.Tensor) -> FixedPoint:
        pieces = numbers.reshape(-1, 3).tolist()
        return cls(tuple((start, end, 2.0**exponent) for start, end, exponent in pieces))

    def lsb_at(self, element: int) -> float:
        """The lsb of the piece in which this element lies."""
        return next(lsb for start, end, lsb in self.pieces if start <= element < end)

    def parts(self, beside: torch.Tensor) -> Iterator[tuple[slice, float]]:
        """All elements, some at a time, with their lsb: an operation may keep copies for which the whole leaves no room.
        beside: a tensor where they are."""
        count = at_once(beside)
        for start, end, lsb in self.pieces:
            for first in range(start, end, count):
                yield slice(first, min(end, first + count)), lsb

    def integers(self, values: torch.Tensor, into: torch.Tensor) -> None:
        """into (int64) = the multiples nearest to values (float32 or float64)."""
        for part, lsb in self.parts(into):
            into[part] = values[part].double().mul_(1 / lsb).round_()

    def values(self, integers: torch.Tensor, into: torch.Tensor, more: torch.Tensor | None = None) -> None:
        """into (float32) = integers * lsb, cast once. more: integers that are added to them."""
        for part, lsb in self.parts(into):
            whole = integers[part] if more is None else integers[part] + more[part]
            into[part] = whole.double().mul_(lsb)


def at_once(beside: torch.Tensor) -> int:
    """How many elements an operation takes best at a time, where this tensor is."""
    return _AT_ONCE if exact.in_host_memory(beside) else _AT_ONCE_THERE


def divided(values: torch.Tensor, by: float) -> torch.Tensor:
    """values / by, in place. torch multiplies a tensor on CUDA by the reciprocal of a number, which rounds otherwise."""
    return values.div_(values.new_full((), by))


def overflows(integers: torch.Tensor, limit: int = LIMIT) -> bool:
    """Whether an element has left the range in which it stands for a number."""
    low, high = torch.stack(torch.aminmax(integers)).tolist()  # a device is waited for once
    return not (low > -limit and high < limit)


def largest(slots: Sequence[Slot], values: torch.Tensor) -> list[float]:
    """The largest magnitude of each of these tensors of a flat buffer; NaN where it has one. Asks a device once."""
    found = [
        values[slot.offset : slot.offset + slot.elements].abs().amax() if slot.elements else values.new_zeros(())
        for slot in slots
    ]
    return torch.stack(found).tolist() if found else []


def name_of(layout: Layout, element: int) -> str:
    """The tensor that an element of the flat buffer belongs to."""
    return [slot.name for slot in layout.slots if slot.offset <= element][-1]
