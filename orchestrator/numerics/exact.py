"""Exact sums: contributions rounded onto a grid, added without loss, divided and cast once (rule A1).

    M = 1.5 * 2**52 * lsb
    k * lsb = (x.double() * weight + M) - M          the multiple of lsb nearest to x * weight, for |x * weight| <= 2**51 lsb
    total = sum of all k * lsb                       in float64, exact while |total| <= 2**53 lsb

All float64 numbers from 2**52 lsb to 2**53 lsb are lsb apart, so adding M rounds, and taking it off again is exact. Sums of
multiples of lsb are free of order, grouping, topology and number of workers. Two tempting shortcuts are wrong although every
digest agrees with itself: a total that starts at M (ties then round by the parity of the total), and adding float32 to M with
a float64 output (torch adds in float32 and casts afterwards).

What costs here is memory traffic and, for small tensors, calls. So numba compiles loops in which one pass does all that is to
be done with an element, and one call adds up a whole model. Shards wait until several can be added: a total that is touched
after each of them pushes the model out of the processor's cache.

Source: pre-rounding, Demmel and Nguyen, "Fast Reproducible Floating-Point Summation" (2013), section 3.
Legend: T = tensors of the layout, S = shards that are added up together, N = elements of a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy
import torch
from numpy.typing import NDArray

from orchestrator.numerics.compiled import compiled, floats_at
from orchestrator.numerics.grid import ABSENT, Grid
from orchestrator.numerics.layout import BLOCK, Layout, Slot, most_waiting

Tensors = Sequence[torch.Tensor | None]  # float32, in the order and the shapes of the layout
Array = NDArray[Any]
Four = tuple[Any, Any, Any, Any]

_ANCHOR: Final = 1.5 * 2.0**52  # multiples of lsb
_PIECE: Final = 128  # elements; longer ones wait longer for the memory, shorter ones for the calls
_MAGNITUDE: Final = numpy.int32(0x7FFF_FFFF)  # the bits of a float32 without its sign
_BLOCK: Final = 4096  # a constant of this module, which numba looks at to see whether to compile again
assert _BLOCK == BLOCK
assert BLOCK % _PIECE == 0


class Accumulator:
    """The running total of one worker's contributions: `clear`, then `add` for each shard, then `complete`.

    total: float64 (exact) or float32 (fast), of the layout's size; the caller owns it, and may read it after `complete`.
    finished: the fingerprint of what `complete` has written in place of the total, or None.
    most_waiting: with so many since `clear`, and again with so many more, all that wait are added up, and may change then.
    """

    def __init__(self, layout: Layout, total: torch.Tensor, *, exact: bool) -> None:
        self._exact = exact
        self._slots = layout.slots
        self._places = numpy.array([(slot.offset, slot.elements) for slot in layout.slots], numpy.int64).reshape(-1, 2)
        self._total = total.numpy()
        self.most_waiting = most_waiting(layout.size)
        self.clear()

    def clear(self) -> None:
        self._waiting: list[tuple[Tensors, list[int], float]] = []
        self._magnitudes = numpy.empty((0, len(self._slots)), numpy.int64)
        self._fresh = True  # the total still holds an earlier sum
        self.finished: int | None = None

    def add(self, tensors: Tensors, weight: float, grid: Grid) -> None:
        """Take weight * tensors in; None contributes nothing. The tensors must stay as they are until `complete`; the grid is
        the same since `clear`. A tensor whose grid is not set yet is added without rounding: the step will be repeated."""
        self._grid = grid
        # At once: whatever Python touches here has just been made, and will have left the cache by the time all are added up.
        ordered = [
            None if tensor is None else _in_order(tensor, slot)
            for tensor, slot in zip(tensors, self._slots, strict=True)
        ]
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in ordered]
        self._waiting.append((ordered, addresses, weight))
        if len(self._waiting) == self.most_waiting:
            self._add_waiting()

    def complete(self, alone: tuple[float, torch.Tensor] | None = None) -> NDArray[numpy.int64]:
        """Complete the total. alone: (divisor, result), where nobody else has anything to add; then, if all can be added up
        at once, the result of `finish` is written instead and the total is not, which would be long out of the cache.

        For each shard added since `clear`, T integers: the bits of the largest |weight * element| of
        each tensor as a float64, ABSENT where there is none. The bits of infinity and NaN lie above those of every number;
        where a magnitude is of those, or does not fit the grid, the total is worth nothing."""
        if self._waiting:
            self._add_waiting(alone if self._fresh else None)
        elif self._fresh:
            self._total.fill(0)
        return self._magnitudes

    def _add_waiting(self, alone: tuple[float, torch.Tensor] | None = None) -> None:
        addresses = numpy.array([addresses for _, addresses, _ in self._waiting], numpy.int64)
        weights = numpy.array([weight for _, _, weight in self._waiting])
        exponents = self._grid.exponents if self._exact else [None] * len(self._slots)
        anchors = numpy.array([0.0 if e is None else _ANCHOR * 2.0**e for e in exponents], numpy.float64)
        largest = numpy.full(addresses.shape, ABSENT, numpy.int32)
        divisor, result = alone or (1.0, torch.empty(0))
        given = addresses, weights, anchors, self._places
        found = _add(*given, self._total, self._fresh, largest, divisor, result.numpy())
        self.finished = None if alone is None else found
        with numpy.errstate(all="ignore"):
            bits = (largest.view(numpy.float32).astype(numpy.float64) * weights[:, None]).view(numpy.int64)
        self._magnitudes = numpy.concatenate([self._magnitudes, numpy.where(largest == ABSENT, ABSENT, bits)])
        self._waiting = []
        self._fresh = False


def finish(
    total: torch.Tensor, divisor: float, result: torch.Tensor, first_block: int, last: torch.Tensor | None = None
) -> int:
    """result (float32) = total / divisor, or (total + last) / divisor, cast once; returns the fingerprint of the result.

    All are chunks of the flat buffer, whole blocks, starting at block `first_block` of the layout. To add the last partial sum
    here saves writing and reading a total.
    """
    summands = total.numpy(), (total[:0] if last is None else last).numpy()
    return _divide(*summands, divisor, result.numpy(), first_block)


def keep(
    total: torch.Tensor, divisor: float, result: torch.Tensor, first_block: int, last: torch.Tensor | None = None
) -> int:
    """result (int64) = total, or total + last, modulo 2**64; otherwise as `finish`. Integers are not divided."""
    assert divisor == 1.0, f"a sum of integers is asked for as it is, not divided by {divisor}"
    return _keep(total.numpy(), (total[:0] if last is None else last).numpy(), result.numpy(), first_block)


@dataclass(frozen=True)
class Sums:
    """What is added up, and what the owner of a chunk makes of its sum.

    dtype: of contributions and partial sums. result: of what everyone gets. finish: `finish`, or another with its arguments.
    """

    dtype: torch.dtype
    result: torch.dtype
    finish: Callable[[torch.Tensor, float, torch.Tensor, int, torch.Tensor | None], int]


MEANS: Final = Sums(torch.float64, torch.float32, finish)
FAST_MEANS: Final = Sums(torch.float32, torch.float32, finish)
INTEGERS: Final = Sums(torch.int64, torch.int64, keep)


def fingerprint_of(values: torch.Tensor, first_block: int) -> int:
    """Fingerprint of float32 values that fill whole blocks: sums of the bits per block, weighted by the block's position,
    modulo 2**64 (rule A10). Fingerprints of disjoint chunks add up to the fingerprint of the whole."""
    return _fingerprint(values.numpy().view(numpy.int32), first_block)


def wrap(value: int) -> int:
    """The signed 64-bit integer that is congruent to `value` modulo 2**64."""
    return (value + 2**63) % 2**64 - 2**63


def _in_order(tensor: torch.Tensor, slot: Slot) -> torch.Tensor:
    """Float32 in memory as the slot says, for compiled code reads it there; a copy only where the tensor is not like that."""
    alike = tensor.stride() == slot.stride and tensor.numel() == slot.elements and tensor.dtype == torch.float32
    if alike and not tensor.is_neg():  # a sign that torch keeps apart
        return tensor
    return torch.empty_strided(slot.shape, slot.stride, dtype=torch.float32).copy_(tensor)


# --- compiled: adding up. Magnitudes are bits of a float32; those of a NaN lie above those of infinity.


@compiled()
def _add_one(address: int, weight: float, anchor: float, part: Array) -> Any:
    """Returns the largest magnitude."""
    values = floats_at(address, part.size)
    bits = values.view(numpy.int32)
    largest = numpy.int32(0)
    for i in range(part.size):
        part[i] += (values[i] * weight + anchor) - anchor
        largest = max(largest, bits[i] & _MAGNITUDE)
    return largest


@compiled()
def _add_four(addresses: Four, weights: Four, anchor: float, part: Array) -> Four:
    """The same for four shards, which come from memory together, while the total is read and written once."""
    a, b, c, d = (
        floats_at(addresses[0], part.size),
        floats_at(addresses[1], part.size),
        floats_at(addresses[2], part.size),
        floats_at(addresses[3], part.size),
    )
    bits_a, bits_b, bits_c, bits_d = (
        a.view(numpy.int32),
        b.view(numpy.int32),
        c.view(numpy.int32),
        d.view(numpy.int32),
    )
    u, v, w, x = weights
    most_a = most_b = most_c = most_d = numpy.int32(0)
    for i in range(part.size):
        part[i] += (
            ((a[i] * u + anchor) - anchor)
            + ((b[i] * v + anchor) - anchor)
            + ((c[i] * w + anchor) - anchor)
            + ((d[i] * x + anchor) - anchor)
        )
        most_a = max(most_a, bits_a[i] & _MAGNITUDE)
        most_b = max(most_b, bits_b[i] & _MAGNITUDE)
        most_c = max(most_c, bits_c[i] & _MAGNITUDE)
        most_d = max(most_d, bits_d[i] & _MAGNITUDE)
    return most_a, most_b, most_c, most_d


@compiled()
def _quotients(total: Array, last: Array, divisor: float, result: Array) -> Any:
    """result = total / divisor, or (total + last) / divisor; returns the sum of its bits."""
    bits = result.view(numpy.int32)
    inverse = 1 / divisor
    inverts = math.frexp(divisor)[0] == 0.5  # a power of two: the product is the quotient, to the bit, and much faster
    for i in range(total.size):
        value = total[i] + last[i] if last.size else total[i]
        result[i] = value * inverse if inverts else value / divisor
    summed = numpy.int64(0)
    for i in range(bits.size):
        summed += bits[i]
    return summed


_KINDS: Final = ("float64", "float32")  # of the total: exact, fast


@compiled(
    *(
        f"(int64[:, ::1], float64[::1], float64[::1], int64[:, ::1], {kind}[::1], boolean, int32[:, ::1], "
        f"{kind}, float32[::1])"
        for kind in _KINDS
    )
)
def _add(
    addresses: Array,
    weights: Array,
    anchors: Array,
    places: Array,
    total: Array,
    fresh: bool,
    largest: Array,
    divisor: float,
    result: Array,
) -> int:
    """Add up piece by piece: while all shards of a piece come, its total stays in the first-level cache.

    addresses: S x T, 0 where a shard does not have a tensor; places: T x 2, offset and number of elements; fresh: what the
    total holds does not count; largest: S x T magnitudes, which stay as they are where there is none. result: empty, or where
    total / divisor goes instead of the total; its fingerprint is returned.
    """
    found = numpy.int64(0)
    scratch = numpy.empty(_PIECE, total.dtype)
    present = numpy.empty(weights.size, numpy.int64)
    for i in range(anchors.size):
        offset, elements = places[i]
        count = 0
        for s in range(weights.size):
            if addresses[s, i] != 0:
                present[count] = s
                count += 1
        end = offset
        while end < offset + elements:
            start = end
            end = min(start - start % _PIECE + _PIECE, offset + elements)  # within a block
            part = scratch[: end - start] if result.size else total[start:end]
            if fresh:
                part[:] = 0
            at = 4 * (start - offset)
            for n in range(0, count // 4 * 4, 4):
                s, t, u, v = present[n], present[n + 1], present[n + 2], present[n + 3]
                most = _add_four(
                    (addresses[s, i] + at, addresses[t, i] + at, addresses[u, i] + at, addresses[v, i] + at),
                    (weights[s], weights[t], weights[u], weights[v]),
                    anchors[i],
                    part,
                )
                largest[s, i], largest[t, i] = max(largest[s, i], most[0]), max(largest[t, i], most[1])
                largest[u, i], largest[v, i] = max(largest[u, i], most[2]), max(largest[v, i], most[3])
            for n in range(count // 4 * 4, count):
                s = present[n]
                largest[s, i] = max(largest[s, i], _add_one(addresses[s, i] + at, weights[s], anchors[i], part))
            if result.size:
                found += _quotients(part, part[:0], divisor, result[start:end]) * (start // _BLOCK + 1)
    return int(found)


# --- compiled: whole blocks


@compiled("(int32[::1], int64)")
def _fingerprint(bits: Array, first_block: int) -> int:
    found = numpy.int64(0)
    for block in range(bits.size // _BLOCK):
        summed = numpy.int64(0)
        for i in range(block * _BLOCK, (block + 1) * _BLOCK):
            summed += bits[i]
        found += summed * (first_block + block + 1)
    return int(found)


@compiled(*(f"({kind}[::1], {kind}[::1], {kind}, float32[::1], int64)" for kind in _KINDS))
def _divide(total: Array, last: Array, divisor: float, result: Array, first_block: int) -> int:
    """Block by block, so that the fingerprint reads what is still in the cache. last: as long as the total, or empty."""
    found = numpy.int64(0)
    for start in range(0, total.size, _BLOCK):
        end = start + _BLOCK
        more = last[start:end] if last.size else last
        found += _quotients(total[start:end], more, divisor, result[start:end]) * (first_block + start // _BLOCK + 1)
    return int(found)


@compiled("(int64[::1], int64[::1], int64[::1], int64)")
def _keep(total: Array, last: Array, result: Array, first_block: int) -> int:
    """Block by block as `_divide`; the fingerprint is that of `_fingerprint`, over whole elements."""
    found = numpy.int64(0)
    for start in range(0, total.size, _BLOCK):
        summed = numpy.int64(0)
        for i in range(start, start + _BLOCK):
            result[i] = total[i] + last[i] if last.size else total[i]
            summed += result[i]
        found += summed * (first_block + start // _BLOCK + 1)
    return int(found)
