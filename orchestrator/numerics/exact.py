"""Exact sums: contributions rounded onto a grid, added without loss, divided and cast once (rule A1).

    M = 1.5 * 2**52 * lsb
    k * lsb = (x.double() * weight + M) - M          the multiple of lsb nearest to x * weight, for |x * weight| <= 2**51 lsb
    total = sum of all k * lsb                       in float64, exact while |total| <= 2**53 lsb

All float64 numbers from 2**52 lsb to 2**53 lsb are lsb apart, so adding M rounds, and taking it off again is exact. Sums of
multiples of lsb are free of order, grouping, topology and number of workers. Two tempting shortcuts are wrong although every
digest agrees with itself. With a total that starts at M, ties round by the parity of the total. When float32 is added to M
with a float64 output, torch adds in float32 and casts afterwards.

The costs here are memory traffic and, for small tensors, calls. So compiled loops (`loops`) do in one pass all that is to be
done with an element, and one call adds up a whole model. Shards wait until several can be added: a total that is touched
after each of them pushes the model out of the processor's cache.

Source: pre-rounding, Demmel and Nguyen, "Fast Reproducible Floating-Point Summation" (2013), section 3.
Legend: T = tensors of the layout, S = shards that are added up together.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy
import torch
from numpy.typing import NDArray

from orchestrator.errors import PipelineRaised
from orchestrator.numerics.compiled import Loops, inverts
from orchestrator.numerics.grid import ABSENT, Grid
from orchestrator.numerics.layout import BLOCK, Layout, Slot, most_waiting

Tensors = Sequence[torch.Tensor | None]  # float32, in the order and the shapes of the layout
Array = NDArray[Any]

ANCHOR: Final = 1.5 * 2.0**52  # multiples of lsb
MAGNITUDE: Final = 0x7FFF_FFFF  # the bits of a float32 without its sign
_PIECE: Final = 128  # elements, as in `loops`
LOOPS: Final = Loops()
_LONG, _DOUBLE = numpy.dtype(numpy.int64), numpy.dtype(numpy.float64)
# Shared by all threads, since a loop holds the interpreter's lock, and nothing in it outlives a call.
_scratch: Final = torch.empty(BLOCK, dtype=torch.float64)


def load() -> None:
    """Have the loops at hand before the first step, and before a process is forked."""
    LOOPS.load()


class Accumulator:
    """The running total of one worker's contributions: `clear`, then `add` for each shard, then `complete`.

    total: float64 (exact) or float32 (fast), of the layout's size; the caller owns it, and may read it after `complete`.
    finished: the fingerprint of what `complete` has written in place of the total, or None.
    lent: whether contributions are the user's code's, which may write there again.
    most_waiting: with so many since `clear`, and again with so many more, all that wait are added up, and may change then.
    """

    def __init__(self, layout: Layout, total: torch.Tensor, *, exact: bool, lent: bool = False) -> None:
        self._exact = exact
        self._lent = lent
        self._slots = layout.slots
        self._places = numpy.array([(slot.offset, slot.elements) for slot in layout.slots], numpy.int64).reshape(-1, 2)
        self._total = total
        self._scratch = torch.empty(_PIECE, dtype=total.dtype)
        self.most_waiting = most_waiting(layout.size)
        self.clear()

    def clear(self) -> None:
        self._waiting: list[tuple[Tensors, list[int], float]] = []
        self._places_taken: set[int] = set()  # by those that wait
        self._magnitudes = numpy.empty((0, len(self._slots)), numpy.int64)
        self._fresh = True  # the total still holds an earlier sum
        self.finished: int | None = None

    def add(self, tensors: Tensors, weight: float, grid: Grid) -> None:
        """Take weight * tensors in; None contributes nothing. The tensors must stay as they are until `complete`; the grid is
        the same since `clear`. A tensor whose grid is not set yet is added without rounding: the step will be repeated. Raises
        PipelineRaised where one that is lent lies where another one waits."""
        self._grid = grid
        # At once: whatever Python touches here has just been made, and will have left the cache by the time all are added up.
        ordered = [
            None if tensor is None else in_order(tensor, slot)
            for tensor, slot in zip(tensors, self._slots, strict=True)
        ]
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in ordered]
        if self._lent:
            take_places(self._places_taken, addresses, self._slots)
        self._waiting.append((ordered, addresses, weight))
        if len(self._waiting) == self.most_waiting:
            self._add_waiting()

    def complete(self, alone: tuple[float, torch.Tensor] | None = None) -> NDArray[numpy.int64]:
        """Complete the total. alone: (divisor, result), if nobody else has anything to add. Then, if all can be added up at
        once, the result of `finish` is written and the total is not, because it would have left the cache long before.

        For each shard added since `clear`, T integers: the bits of the largest |weight * element| of
        each tensor as a float64, ABSENT where there is none. The bits of infinity and NaN lie above those of every number;
        where a magnitude is of those, or does not fit the grid, the total is worth nothing."""
        if self._waiting:
            self._add_waiting(alone if self._fresh else None)
        elif self._fresh:
            self._total.zero_()
        return self._magnitudes

    def _add_waiting(self, alone: tuple[float, torch.Tensor] | None = None) -> None:
        shards, tensors = len(self._waiting), len(self._slots)
        _, places, weights = zip(*self._waiting, strict=True)
        integers = numpy.array([*chain(*places), *range(shards)], _LONG)
        exponents = self._grid.exponents if self._exact else [None] * tensors
        anchors = [0.0 if e is None else ANCHOR * 2.0**e for e in exponents]
        numbers = numpy.array([*weights, *anchors], _DOUBLE)
        largest = numpy.full((shards, tensors), ABSENT, numpy.int32)
        divisor, result = alone or (1.0, self._scratch[:0])
        at, number_at = _at(integers), _at(numbers)
        found = loop("add", self._total)(
            shards,
            tensors,
            at,
            number_at,
            number_at + 8 * shards,
            _at(self._places),
            start_of(self._total),
            self._total.numel(),
            self._fresh,
            _at(largest),
            alone is not None,
            divisor,
            inverts(divisor),
            start_of(result, torch.float32) if alone is not None else 0,
            start_of(self._scratch),
            at + 8 * shards * tensors,
        )
        self.finished = None if alone is None else found
        self._magnitudes = numpy.concatenate([self._magnitudes, weighted(largest, numbers[:shards, None])])
        self._waiting = []
        self._places_taken = set()
        self._fresh = False


def take_places(taken: set[int], places: Sequence[int], slots: Sequence[Slot]) -> None:
    """Add where tensors of one contribution begin to where others wait; 0 for none. Raises PipelineRaised where one waits."""
    if not taken.isdisjoint(places):
        raise overwritten(next(slot.name for slot, place in zip(slots, places, strict=True) if place in taken))
    taken.update(places)
    taken.discard(0)


def overwritten(name: str) -> PipelineRaised:
    """The error of a gradient that waits to be added up, and in whose memory the user's code has written."""
    return PipelineRaised(
        f"the gradient of {name!r} was overwritten while the next batch was computed",
        "gradients of several batches wait until they are added up: have hooks, autograd functions and contributions return a "
        "new tensor each time",
        code="model.gradient-overwritten",
    )


def weighted(largest: NDArray[numpy.int32], weights: NDArray[numpy.float64]) -> NDArray[numpy.int64]:
    """Magnitudes of float32 elements (bits, or ABSENT), times their weights, as magnitudes of float64."""
    with numpy.errstate(all="ignore"):
        bits = (largest.view(numpy.float32).astype(_DOUBLE) * weights).view(_LONG)
    return numpy.where(largest == ABSENT, ABSENT, bits)


def loop(name: str, total: torch.Tensor) -> Callable[..., int]:
    """The one of this name for a total of this type."""
    return LOOPS[f"{name} {str(total.dtype).removeprefix('torch.')}"]


def finish(parts: Sequence[torch.Tensor], divisor: float, result: torch.Tensor, first_block: int) -> int:
    """result (float32) = the sum of the parts / divisor, cast once; returns the fingerprint of the result.

    All are chunks of the flat buffer, whole blocks, starting at block `first_block` of the layout. Partial sums are added up
    here, from left to right, to save writing and reading their total.
    """
    listed = _listed(parts, result)
    return loop("divide", parts[0])(
        listed.buffer_info()[0],
        len(parts),
        result.numel(),
        divisor,
        inverts(divisor),
        start_of(result, torch.float32),
        first_block,
        _scratch.data_ptr(),
    )


def keep(parts: Sequence[torch.Tensor], divisor: float, result: torch.Tensor, first_block: int) -> int:
    """result = the sum of the parts, all of one type of integers (int64: modulo 2**64); otherwise as `finish`. Integers are
    not divided."""
    assert divisor == 1.0, f"a sum of integers is asked for as it is, not divided by {divisor}"
    listed, to = _listed(parts, result), start_of(result, parts[0].dtype)
    return loop("keep", result)(
        listed.buffer_info()[0], len(parts), result.numel(), to, first_block, _scratch.data_ptr()
    )


def join(parts: Sequence[torch.Tensor], into: torch.Tensor) -> None:
    """into = the sum of the parts, whole blocks of one type, from left to right. The first part may be `into`."""
    if len(parts) == 1:
        into.copy_(parts[0])
    elif len(parts) == 2:
        torch.add(*parts, out=into)
    else:
        listed, to = _listed(parts, into), start_of(into, parts[0].dtype)
        loop("join", into)(listed.buffer_info()[0], len(parts), into.numel(), to)


def _listed(parts: Sequence[torch.Tensor], like: torch.Tensor) -> array[int]:
    """The addresses of the parts, which are of one type and as long as that tensor."""
    kind, elements = parts[0].dtype, like.numel()
    assert all(part.numel() == elements for part in parts)
    return array("q", [start_of(part, kind) for part in parts])


@dataclass(frozen=True)
class Sums:
    """A kind of sum: the elements that are added up, and what the owner of a chunk makes of their sum."""

    dtype: torch.dtype  # of contributions and partial sums
    result: torch.dtype  # of what everyone gets
    finish: Callable[[Sequence[torch.Tensor], float, torch.Tensor, int], int]  # `finish`, or one like it
    join: Callable[[Sequence[torch.Tensor], torch.Tensor], None]  # the same
    # For sums on a device: third tensor = the elements of a `lossless_packing.PackedVector`, plus the second tensor if there
    # is one.
    unpack: Callable[[Any, torch.Tensor | None, torch.Tensor], None] | None = None


MEANS: Final = Sums(torch.float64, torch.float32, finish, join)
FAST_MEANS: Final = Sums(torch.float32, torch.float32, finish, join)
INTEGERS: Final = Sums(torch.int64, torch.int64, keep, join)
FEW_LEVELS: Final = {  # by their bits
    8: Sums(torch.int8, torch.int8, keep, join),
    16: Sums(torch.int16, torch.int16, keep, join),
}


def fingerprint_of(values: torch.Tensor, first_block: int) -> int:
    """Fingerprint of float32 values that fill whole blocks: sums of the bits per block, weighted by the block's position,
    modulo 2**64 (rule A10). Fingerprints of disjoint chunks add up to the fingerprint of the whole. For values on a device it
    takes operations of torch, and waits for the device."""
    if not in_host_memory(values):
        return int(fingerprint_by_operations(values.view(torch.int32), first_block))
    return LOOPS["fingerprint"](start_of(values, torch.float32), values.numel(), first_block)


def differ(after: torch.Tensor, before: torch.Tensor, divisor: int, lsb: float, into: torch.Tensor) -> bool:
    """into (int64) = the integers nearest to (after - before) / divisor / lsb, half to even; after and before float32, lsb a
    power of two. Returns whether all are finite and below 2**62; 0 stands where one is not."""
    start, elements = start_of(after, torch.float32), after.numel()
    at = start_of(before, torch.float32), elements, float(divisor), 1 / lsb, start_of(into, torch.int64)
    return LOOPS["differ"](start, *at) == 0


def absorb(update: torch.Tensor, *sums: torch.Tensor) -> int:
    """Add an update to two or three sums, all int64 of whole blocks; returns the fingerprint of the update."""
    first, second, third = (start_of(each, torch.int64) for each in (*sums, sums[0])[:3])
    return wrap(LOOPS["absorb"](start_of(update, torch.int64), update.numel(), first, second, third, len(sums) == 3))


def fingerprint_of_integers(values: torch.Tensor, first_block: int = 0) -> int:
    """The same of int64 values, their bits being what they are: linear modulo 2**64."""
    if not in_host_memory(values):
        return int(fingerprint_by_operations(values, first_block))
    return wrap(keep([values], 1.0, values, first_block))


def fingerprint_of_sums(values: torch.Tensor) -> int:
    """The same of what is added up, in memory of whatever dtype; 0 of elements that are shorter than 32 bits."""
    if values.dtype.itemsize == torch.int64.itemsize:
        return fingerprint_of_integers(values.view(torch.int64))
    return wrap(fingerprint_of(values.view(torch.float32), 0)) if values.dtype.itemsize == 4 else 0


def fingerprint_by_operations(bits: torch.Tensor, first_block: int) -> torch.Tensor:
    """Fingerprint of int32 or int64 bits that fill whole blocks, by operations of torch: one int64, whose sums wrap."""
    of_blocks = bits.view(-1, BLOCK).sum(1, dtype=torch.int64)
    places = torch.ones_like(of_blocks).cumsum(0) + first_block
    return (of_blocks * places).sum()


def wrap(value: int) -> int:
    """The signed 64-bit integer that is congruent to `value` modulo 2**64."""
    return (value + 2**63) % 2**64 - 2**63


def in_host_memory(tensor: torch.Tensor) -> bool:
    """Whether compiled loops can read it, which take addresses."""
    return tensor.device.type == "cpu"


def there(tensor: torch.Tensor, beside: torch.Tensor) -> torch.Tensor:
    """The same values, from host memory to where another tensor is."""
    return tensor if in_host_memory(beside) else beside.new_empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)


def in_order(tensor: torch.Tensor, slot: Slot) -> torch.Tensor:
    """Float32 in memory as the slot says, for compiled code reads it there; a copy only where the tensor is not like that."""
    alike = tensor.stride() == slot.stride and tensor.numel() == slot.elements and tensor.dtype == torch.float32
    if alike and not tensor.is_neg():  # a sign that torch keeps apart
        return tensor
    return torch.empty_strided(slot.shape, slot.stride, dtype=torch.float32, device=tensor.device).copy_(tensor)


def _at(array: Array) -> int:
    """The address of the elements for compiled code, which takes them to lie one after the other."""
    return int(array.__array_interface__["data"][0])


def start_of(tensor: torch.Tensor, kind: torch.dtype | None = None) -> int:
    """The same; kind: what compiled code takes them for."""
    assert tensor.is_contiguous()
    assert kind in (None, tensor.dtype)
    return tensor.data_ptr()
