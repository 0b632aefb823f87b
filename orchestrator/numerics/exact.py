"""Exact sums: contributions rounded onto a grid, added as integers, divided and cast once (rule A1).

    M = 1.5 * 2**52 * lsb
    k = bits(x.double() * weight + M) - bits(M)      the multiple of lsb nearest to x * weight, for |x * weight| <= 2**51 lsb
    total = sum of all k * lsb                       in float64, exact while |total| <= 2**53 lsb

All float64 numbers from 2**52 lsb to 2**53 lsb are lsb apart, so their bits, read as an integer, count in steps of lsb.
Integers wrap, hence any number of shards may be added before the multiples of bits(M) are taken off again. Sums of integers,
and float64 sums of multiples of lsb, are free of order, grouping, topology and number of workers. Two tempting shortcuts
are wrong although every digest agrees with itself: a float64 total that starts at M (ties then round by the parity of the
total), and adding float32 to M with a float64 output (torch adds in float32 and casts afterwards).

What costs here is memory traffic, and for small tensors the calls. So shards wait until several can be added, and then a
tensor is measured, rounded and added up piece by piece, all shards of a piece while it is in the cache; small tensors are
put together first. numpy does the passes: its calls are cheaper than torch's, and its addition of integers four times as fast.

Source: pre-rounding, Demmel and Nguyen, "Fast Reproducible Floating-Point Summation" (2013), section 3.
Legend: T = tensors of the layout, S = elements of a group of small tensors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy
import torch
from numpy.typing import NDArray

from orchestrator.numerics.grid import ABSENT, Grid
from orchestrator.numerics.layout import BLOCK, Layout, Slot

_PIECE = 8 * BLOCK  # elements worked on at a time: two float64 operands of them fit into a second-level cache
_SMALL = BLOCK  # elements; tensors up to this size are put together
_NARROW = 2.0**50  # multiples of lsb; half of what the reading needs, for the bound itself is rounded
_WAITING_BYTES = 32 << 20  # float32 contributions that may wait: what a last-level cache holds

Tensors = Sequence[torch.Tensor | None]  # float32, in the order and the shapes of the layout
Array = NDArray[Any]


class _Shard:
    """A contribution that waits, and what was measured of it: indices of tensors, each with an extreme element."""

    def __init__(self, tensors: Tensors, weight: float) -> None:
        self.tensors = tensors
        self.weight = weight
        self.measured: list[int] = []
        self.extremes: list[float] = []

    def magnitudes(self) -> list[int]:
        """T integers; the bits of a NaN lie above those of infinity, whatever its sign was."""
        bits = (numpy.abs(self.extremes) * self.weight).view(numpy.int64)
        largest = numpy.full(len(self.tensors), ABSENT)
        numpy.maximum.at(largest, self.measured, bits)
        found: list[int] = largest.tolist()
        return found


class Accumulator:
    """The running total of one worker's contributions: `clear`, then `add` for each shard, then `settle`.

    total: float64 (exact) or float32 (fast), of the layout's size; the caller owns it, and may read it after `settle`.
    most_waiting: with so many since `clear`, and again with so many more, all that wait are added up, and may change then.
    """

    def __init__(self, layout: Layout, total: torch.Tensor, *, exact: bool) -> None:
        self._total = total
        self._views = layout.views(total)
        self._exact = exact
        self._units = _units(layout.slots, total.numpy())
        self.most_waiting = max(1, _WAITING_BYTES // (4 * max(1, layout.size)))
        self.clear()

    def clear(self) -> None:
        self._waiting: list[_Shard] = []
        self._magnitudes: list[list[int]] = []
        self._fresh = True  # the total still holds an earlier sum

    def add(self, tensors: Tensors, weight: float, grid: Grid) -> None:
        """Take weight * tensors in; None contributes nothing. The tensors must stay as they are until `settle`; the grid is
        the same since `clear`. A tensor whose grid is not set yet is only measured: the step will be repeated."""
        self._grid = grid
        self._waiting.append(_Shard(tensors, weight))
        if len(self._waiting) == self.most_waiting:
            self._add_waiting()

    def settle(self) -> list[list[int]]:
        """Complete the total. For each shard added since `clear`, T integers: the bits of the largest |weight * element| of
        each tensor as a float64, ABSENT where there is none. The bits of infinity and NaN lie above those of every number;
        where a magnitude is of those, or does not fit the grid, the total is worth nothing."""
        if self._waiting:
            self._add_waiting()
        elif self._fresh:
            self._total.zero_()
        self._fresh = False
        return self._magnitudes

    def _add_waiting(self) -> None:
        with numpy.errstate(all="ignore"):
            if self._exact:
                for unit in self._units:
                    unit.add(self._waiting, self._grid, fresh=self._fresh)
            else:
                self._add_fast()
            self._magnitudes += [shard.magnitudes() for shard in self._waiting]
        self._waiting = []
        self._fresh = False

    def _add_fast(self) -> None:
        if self._fresh:
            self._total.zero_()
        for shard in self._waiting:
            for unit in self._units:
                unit.measure(shard)
            pairs = [
                (view, tensor) for view, tensor in zip(self._views, shard.tensors, strict=True) if tensor is not None
            ]
            if pairs:
                torch._foreach_add_([view for view, _ in pairs], [tensor for _, tensor in pairs], alpha=shard.weight)


class _Anchor(NamedTuple):
    """What rounds a shard's values: values * factor + anchor has the bits `bits` + k. Arrays of one element or of S.

    A weight that is a power of two needs no multiplication: x + M / weight is x * weight + M, scaled without rounding.
    """

    factor: float
    anchor: Array
    bits: Array

    @classmethod
    def of(cls, lsb: Array, weight: float) -> _Anchor:
        anchor = lsb * (1.5 * 2.0**52)
        power_of_two = math.frexp(weight)[0] == 0.5
        scaled = anchor / weight if power_of_two else anchor
        return cls(1.0 if power_of_two else weight, scaled, scaled.view(numpy.int64))


class _Adder:
    """Adds up the multiples of lsb of some shards' values, so many float32 elements each: `take` for each, then `sum`."""

    def __init__(self, elements: int) -> None:
        self._rounded, self._summed = numpy.zeros(elements), numpy.zeros(elements)
        self._bits, self._count = self._rounded.view(numpy.int64), self._summed.view(numpy.int64)

    def take(self, values: Array, anchor: _Anchor, *, first: bool) -> None:
        numpy.copyto(self._rounded, values)
        if anchor.factor != 1.0:
            numpy.multiply(self._rounded, anchor.factor, out=self._rounded)
        if first:
            numpy.add(self._rounded, anchor.anchor, out=self._summed)
        else:
            numpy.add(self._rounded, anchor.anchor, out=self._rounded)
            numpy.add(self._count, self._bits, out=self._count)

    def sum(self, anchors: Sequence[_Anchor], lsb: Array, *, narrow: bool) -> Array:
        """The sum in float64, valid until the next `take`. anchors: of each `take`; narrow: the sum is known to be at most
        2**51 lsb, so that it can be read beside M as each contribution was: numpy converts integers slowly."""
        anchor = lsb * (1.5 * 2.0**52)
        kept = anchor.view(numpy.int64) if narrow else 0
        numpy.subtract(self._count, sum(each.bits for each in anchors) - kept, out=self._count)
        if narrow:
            return numpy.subtract(self._summed, anchor, out=self._rounded)
        return numpy.multiply(self._count, lsb, out=self._rounded)


class _Unit(Protocol):
    """One tensor or several small ones: the part of an accumulator that is theirs."""

    def measure(self, shard: _Shard) -> object: ...
    def add(self, waiting: Sequence[_Shard], grid: Grid, *, fresh: bool) -> None:
        """Measure all, and put their sum into the total (fresh) or add it there."""


class _Large:
    """One tensor, in pieces."""

    def __init__(self, i: int, slot: Slot, total: Array, adders: dict[int, _Adder]) -> None:
        self._i = i
        self._slot = slot
        cuts = [(start, min(start + _PIECE, slot.elements)) for start in range(0, slot.elements, _PIECE)]
        for start, end in cuts:
            adders.setdefault(end - start, _Adder(end - start))
        self._pieces = [(slice(start, end), adders[end - start]) for start, end in cuts]
        self._total = total[slot.offset : slot.offset + slot.elements]

    def measure(self, shard: _Shard) -> None:
        tensor = shard.tensors[self._i]
        if tensor is not None:
            self._measure(shard, tensor)

    def add(self, waiting: Sequence[_Shard], grid: Grid, *, fresh: bool) -> None:
        i, exponent = self._i, grid.exponents[self._i]
        present = [(shard, _flat(t, self._slot)) for shard in waiting if (t := shard.tensors[i]) is not None]
        if exponent is None or not present:
            for shard, values in present:
                self._measure(shard, values)
            if fresh:
                self._total.fill(0.0)
            return
        lsb = numpy.ldexp([1.0], exponent)
        anchors = [_Anchor.of(lsb, shard.weight) for shard, _ in present]
        for elements, adder in self._pieces:
            bound = 0.0
            for nth, ((shard, values), anchor) in enumerate(zip(present, anchors, strict=True)):
                piece = values[elements] if len(self._pieces) > 1 else values
                bound += self._measure(shard, piece)
                adder.take(piece.numpy(), anchor, first=nth == 0)
            summed = adder.sum(anchors, lsb, narrow=bound <= _NARROW * lsb[0])
            _put(self._total[elements], summed, fresh=fresh)

    def _measure(self, shard: _Shard, values: torch.Tensor) -> float:
        """Notes the extremes; returns the largest |weight * element|."""
        low, high = (extreme.item() for extreme in torch.aminmax(values))  # hands a NaN on wherever it stands
        shard.measured += (self._i, self._i)
        shard.extremes += (low, high)
        return max(abs(low), abs(high)) * shard.weight


class _Small:
    """Several tensors, one after the other in an array of S elements."""

    def __init__(self, members: Sequence[tuple[int, Slot]], total: Array) -> None:
        self._members = members
        self._sizes = [slot.elements for _, slot in members]
        self._starts = list(itertools.accumulate(self._sizes, initial=0))
        self._firsts = numpy.array(self._starts[:-1])
        self._joined = torch.zeros(self._starts[-1])
        self._values = self._joined.numpy()
        self._nothing = [torch.zeros(size) for size in self._sizes]
        self._adder = _Adder(self._starts[-1])
        self._totals = [total[slot.offset : slot.offset + slot.elements] for _, slot in members]

    def measure(self, shard: _Shard) -> Array | None:
        """Notes the extremes; returns the largest |weight * element| of each member, None when all are absent."""
        present = [shard.tensors[i] is not None for i, _ in self._members]
        if not any(present):
            return None
        self._join(shard)
        largest = numpy.maximum.reduceat(numpy.abs(self._values), self._firsts)  # hands a NaN on, too
        shard.measured += [i for (i, _), here in zip(self._members, present, strict=True) if here]
        shard.extremes += largest[present].tolist()
        weighted: Array = largest.astype(numpy.float64) * shard.weight
        return weighted

    def add(self, waiting: Sequence[_Shard], grid: Grid, *, fresh: bool) -> None:
        exponents = [grid.exponents[i] for i, _ in self._members]
        units = [0.0 if exponent is None else math.ldexp(1.0, exponent) for exponent in exponents]
        lsb, bound = numpy.repeat(units, self._sizes), numpy.zeros(len(units))
        by_weight = {shard.weight: _Anchor.of(lsb, shard.weight) for shard in waiting}
        taken: list[_Anchor] = []
        for shard in waiting:
            largest = self.measure(shard)
            if largest is not None:
                bound += largest
                self._adder.take(self._values, by_weight[shard.weight], first=not taken)
                taken.append(by_weight[shard.weight])
        if taken:
            narrow = bool((bound <= _NARROW * numpy.array(units)).all())
            summed = self._adder.sum(taken, lsb, narrow=narrow)
        elif fresh:
            summed = numpy.zeros(lsb.size)
        else:
            return
        for total, start, end in zip(self._totals, self._starts, self._starts[1:], strict=False):
            _put(total, summed[start:end], fresh=fresh)

    def _join(self, shard: _Shard) -> None:
        tensors = []
        for (i, slot), nothing in zip(self._members, self._nothing, strict=True):
            tensor = shard.tensors[i]
            tensors.append(nothing if tensor is None else _flat(tensor, slot))
        torch.cat(tensors, out=self._joined)


def _units(slots: Sequence[Slot], total: Array) -> list[_Unit]:
    adders: dict[int, _Adder] = {}
    units: list[_Unit] = []
    group: list[tuple[int, Slot]] = []
    for i, slot in enumerate(slots):
        if slot.elements > _SMALL:
            units.append(_Large(i, slot, total, adders))
        elif slot.elements:
            group.append((i, slot))
            if sum(member.elements for _, member in group) > _PIECE - _SMALL:
                units.append(_Small(group, total))
                group = []
    return [*units, _Small(group, total)] if group else units


def _flat(tensor: torch.Tensor, slot: Slot) -> torch.Tensor:
    """The elements in the order in which they lie in the slot; a copy only where the tensor's own order is another."""
    if tensor.stride() != slot.stride:
        ordered = torch.empty_strided(slot.shape, slot.stride, dtype=tensor.dtype)
        tensor = ordered.copy_(tensor)
    return tensor if tensor.dim() == 1 else tensor.as_strided((slot.elements,), (1,))


def _put(total: Array, values: Array, *, fresh: bool) -> None:
    if fresh:
        numpy.copyto(total, values)
    else:
        numpy.add(total, values, out=total)


def finish(
    total: torch.Tensor, divisor: float, result: torch.Tensor, first_block: int, last: torch.Tensor | None = None
) -> int:
    """result (float32) = total / divisor, or (total + last) / divisor, cast once; returns the fingerprint of the result.

    All are chunks of the flat buffer, whole blocks, starting at block `first_block` of the layout. To add the last partial sum
    here saves writing and reading a total: everything is done piece by piece, in the cache.
    """
    fingerprint = 0
    quotient = torch.empty(min(_PIECE, total.numel()), dtype=total.dtype)
    for start in range(0, total.numel(), _PIECE):
        piece = slice(start, start + _PIECE)
        part = result[piece]
        summed = total[piece]
        shared = quotient[: summed.numel()]
        if last is not None:
            summed = torch.add(summed, last[piece], out=shared)
        part.copy_(torch.div(summed, divisor, out=shared))
        fingerprint += fingerprint_of(part, first_block + start // BLOCK)
    return wrap(fingerprint)


def fingerprint_of(values: torch.Tensor, first_block: int) -> int:
    """Fingerprint of float32 values that fill whole blocks: sums of the bits per block, weighted by the block's position,
    modulo 2**64 (rule A10). Fingerprints of disjoint chunks add up to the fingerprint of the whole."""
    sums = values.view(torch.int32).numpy().reshape(-1, BLOCK).sum(1, dtype=numpy.int64)
    weights = numpy.arange(first_block + 1, first_block + 1 + sums.size)
    return wrap(int((sums * weights).sum()))


def wrap(value: int) -> int:
    """The signed 64-bit integer that is congruent to `value` modulo 2**64."""
    return (value + 2**63) % 2**64 - 2**63
