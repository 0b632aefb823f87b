"""The loops of `exact` over arrays, for numba to compile. Only `compiled` imports this module, and only to compile it: numba
costs a process half a second.

Without `fastmath`, LLVM neither reassociates nor contracts what is written in a loop: on every machine each operation is
rounded once, as IEEE 754 says. Division by zero gives infinity or NaN. No loop allocates or raises: nothing of Python and of
numba is at hand where the machine code runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numba
import numpy
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic
from numpy.typing import NDArray

Array = NDArray[Any]
Pointer = Any
Four = tuple[Any, Any, Any, Any]

PIECE: Final = 128  # elements; longer ones wait longer for the memory, shorter ones for the calls
BLOCK: Final = 4096  # elements; the layout's
ANCHOR: Final = 1.5 * 2.0**52  # to add it and take it off again rounds to an integer, of magnitudes below WHOLE
WHOLE: Final = 2.0**51
LIMIT: Final = 2.0**62  # of the integers that stand for parameters
_MAGNITUDE: Final = numpy.int32(0x7FFF_FFFF)  # the bits of a float32 without its sign

_inlined: Callable[..., Any] = numba.njit(error_model="numpy")


def _pointer_to(kind: Any) -> Any:
    """An intrinsic: the integer as a pointer to what is of this kind."""

    @intrinsic
    def pointer(_: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(address), generate  # type: ignore[no-untyped-call]

    return pointer


_to_floats, _to_bits = _pointer_to(types.float32), _pointer_to(types.int32)


@_inlined
def _floats(address: int, elements: int) -> Any:
    """The float32 array of so many elements that lies there. Whoever owns it has to keep it alive."""
    return carray(_to_floats(address), elements)


@_inlined
def _bits(address: int, elements: int) -> Any:
    """The same as int32."""
    return carray(_to_bits(address), elements)


# --- adding up. Magnitudes are bits of a float32; those of a NaN lie above those of infinity.


@_inlined
def _add_one(address: int, weight: float, anchor: float, part: Array) -> Any:
    """Returns the largest magnitude."""
    values, bits = _floats(address, part.size), _bits(address, part.size)
    largest = numpy.int32(0)
    for i in range(part.size):
        part[i] += (values[i] * weight + anchor) - anchor
        largest = max(largest, bits[i] & _MAGNITUDE)
    return largest


@_inlined
def _add_four(addresses: Four, weights: Four, anchor: float, part: Array) -> Four:
    """The same for four shards, which come from memory together, while the total is read and written once."""
    at_a, at_b, at_c, at_d = addresses
    size = part.size
    a, b, c, d = _floats(at_a, size), _floats(at_b, size), _floats(at_c, size), _floats(at_d, size)
    bits_a, bits_b, bits_c, bits_d = _bits(at_a, size), _bits(at_b, size), _bits(at_c, size), _bits(at_d, size)
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


@_inlined
def _quotients(total: Array, last: Array, divisor: float, inverts: bool, result_at: int) -> Any:
    """result = total / divisor, or (total + last) / divisor; returns the sum of its bits. inverts: the divisor is a power of
    two: then the product with its inverse is the quotient, to the bit, and much faster."""
    result, bits = _floats(result_at, total.size), _bits(result_at, total.size)
    inverse = 1 / divisor
    for i in range(total.size):
        value = total[i] + last[i] if last.size else total[i]
        result[i] = value * inverse if inverts else value / divisor
    summed = numpy.int64(0)
    for i in range(bits.size):
        summed += bits[i]
    return summed


def _add(
    shards: int,
    tensors: int,
    addresses_at: Pointer,
    weights_at: Pointer,
    anchors_at: Pointer,
    places_at: Pointer,
    total_at: Pointer,
    size: int,
    fresh: bool,
    largest_at: Pointer,
    finishing: bool,
    divisor: float,
    inverts: bool,
    result_at: int,
    scratch_at: Pointer,
    present_at: Pointer,
) -> int:
    """Add up piece by piece: while all shards of a piece come, its total stays in the first-level cache.

    addresses: S x T, 0 where a shard does not have a tensor; places: T x 2, offset and number of elements; total: `size`
    elements; fresh: what it holds does not count; largest: S x T magnitudes, which stay as they are where there is none.
    finishing: total / divisor goes into `result` instead, and its fingerprint is returned. scratch: PIECE elements; present: S.
    """
    addresses, largest = carray(addresses_at, (shards, tensors)), carray(largest_at, (shards, tensors))
    weights, anchors, places = carray(weights_at, shards), carray(anchors_at, tensors), carray(places_at, (tensors, 2))
    total, scratch, present = carray(total_at, size), carray(scratch_at, PIECE), carray(present_at, shards)
    found = numpy.int64(0)
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
            end = min(start - start % PIECE + PIECE, offset + elements)  # within a block
            part = scratch[: end - start] if finishing else total[start:end]
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
            if finishing:
                summed = _quotients(part, part[:0], divisor, inverts, result_at + 4 * start)
                found += summed * (start // BLOCK + 1)
    return int(found)


# --- whole blocks


def _fingerprint(bits_at: Pointer, elements: int, first_block: int) -> int:
    bits = carray(bits_at, elements)
    found = numpy.int64(0)
    for block in range(elements // BLOCK):
        summed = numpy.int64(0)
        for i in range(block * BLOCK, (block + 1) * BLOCK):
            summed += bits[i]
        found += summed * (first_block + block + 1)
    return int(found)


def _divide(
    total_at: Pointer,
    last_at: Pointer,
    more: bool,
    elements: int,
    divisor: float,
    inverts: bool,
    result_at: int,
    first_block: int,
) -> int:
    """Block by block, so that the fingerprint reads what is still in the cache. more: whether there is a `last`."""
    total, last = carray(total_at, elements), carray(last_at, elements if more else 0)
    found = numpy.int64(0)
    for start in range(0, elements, BLOCK):
        end = start + BLOCK
        rest = last[start:end] if more else last
        summed = _quotients(total[start:end], rest, divisor, inverts, result_at + 4 * start)
        found += summed * (first_block + start // BLOCK + 1)
    return int(found)


def _keep(total_at: Pointer, last_at: Pointer, more: bool, elements: int, result_at: Pointer, first_block: int) -> int:
    """Block by block as `_divide`; the fingerprint is that of `_fingerprint`, over whole elements."""
    total, last = carray(total_at, elements), carray(last_at, elements if more else 0)
    result = carray(result_at, elements)
    found = numpy.int64(0)
    for start in range(0, elements, BLOCK):
        summed = numpy.int64(0)
        for i in range(start, start + BLOCK):
            result[i] = total[i] + last[i] if more else total[i]
            summed += result[i]
        found += summed * (first_block + start // BLOCK + 1)
    return int(found)


# --- parameters as integers (`fixed_point`)


def _differ(
    after_at: Pointer, before_at: Pointer, elements: int, divisor: float, inverse: float, update_at: Pointer
) -> int:
    """update = the integers nearest to (after - before) / divisor * inverse. Returns how many are out of range, or none."""
    after, before, update = carray(after_at, elements), carray(before_at, elements), carray(update_at, elements)
    strange = numpy.int64(0)
    for i in range(elements):
        value = (numpy.float64(after[i]) - numpy.float64(before[i])) / divisor * inverse
        rounded = (value + ANCHOR) - ANCHOR if abs(value) < WHOLE else value
        fits = abs(rounded) < LIMIT  # NaN is not below it
        update[i] = numpy.int64(rounded) if fits else numpy.int64(0)
        strange += not fits
    return int(strange)


def _absorb(update_at: Pointer, elements: int, x_at: Pointer, own_at: Pointer, pending_at: Pointer, more: bool) -> int:
    """Add the update to x and to own, and to pending where there is `more`; returns its fingerprint, as `_keep` does."""
    update, x, own = carray(update_at, elements), carray(x_at, elements), carray(own_at, elements)
    pending = carray(pending_at, elements if more else 0)
    found = numpy.int64(0)
    for start in range(0, elements, BLOCK):
        summed = numpy.int64(0)
        for i in range(start, start + BLOCK):
            value = update[i]
            x[i] += value
            own[i] += value
            summed += value
            if more:
                pending[i] += value
        found += summed * (start // BLOCK + 1)
    return int(found)


# --- few levels


def _largest(bits_at: Pointer, elements: int) -> int:
    """The largest magnitude of float32 values, as bits."""
    bits = carray(bits_at, elements)
    largest = numpy.int32(0)
    for i in range(elements):
        largest = max(largest, bits[i] & _MAGNITUDE)
    return int(largest)


def _quantize(
    values_at: Pointer, elements: int, factor: float, spacing: float, levels: float, total_at: Pointer, keeps: bool
) -> int:
    """total += values * factor, rounded half to even and held within the levels. keeps: what rounding dropped, in units of
    the values, takes their place."""
    values, total = carray(values_at, elements), carray(total_at, elements)
    for i in range(elements):
        level = min(max((values[i] * factor + ANCHOR) - ANCHOR, -levels), levels)
        total[i] += numpy.int64(level)
        if keeps:
            values[i] = values[i] - level * spacing
    return 0


def _dequantize(total_at: Pointer, elements: int, factor: float, result_at: Pointer) -> int:
    """result = total * factor."""
    total, result = carray(total_at, elements), carray(result_at, elements)
    for i in range(elements):
        result[i] = total[i] * factor
    return 0


# --- few elements


def _choose(bits_at: Pointer, elements: int, count: int, histogram_at: Pointer, chosen_at: Pointer) -> int:
    """The places of the `count` largest magnitudes, in order; of equal ones the first, and none of zeros. Digit by digit of the
    magnitudes' bits, from the top. histogram: 2048 elements; returns how many there are."""
    bits, chosen, histogram = carray(bits_at, elements), carray(chosen_at, count), carray(histogram_at, 2048)
    least, left = numpy.int64(0), numpy.int64(count)
    for digit in range(3):
        width = 11 if digit == 0 else 10
        shift = 20 - 10 * digit
        histogram[:] = 0
        for i in range(elements):
            magnitude = numpy.int64(bits[i] & _MAGNITUDE)
            if digit == 0 or magnitude >> (shift + width) == least:
                histogram[(magnitude >> shift) & ((1 << width) - 1)] += 1
        found = numpy.int64((1 << width) - 1)
        while histogram[found] < left:
            left -= histogram[found]
            found -= 1
        least = (least << width) | found
    n = numpy.int64(0)
    for i in range(elements):
        magnitude = numpy.int64(bits[i] & _MAGNITUDE)
        if magnitude > least or (magnitude == least and left > 0 and magnitude > 0):
            left -= magnitude == least
            chosen[n] = i
            n += 1
    return int(n)


def _pack_gaps(chosen_at: Pointer, count: int, packed_at: Pointer) -> int:
    """The distances between places (from -1 on, so none is zero), in bytes of 7 bits, the lowest first; the eighth says that
    more follow. Returns the number of bytes, at most 9 for each."""
    chosen, packed = carray(chosen_at, count), carray(packed_at, 9 * count)
    size, before = numpy.int64(0), numpy.int64(-1)
    for i in range(count):
        gap = chosen[i] - before
        before = chosen[i]
        while gap >= 128:
            packed[size] = (gap & 127) | 128
            gap >>= 7
            size += 1
        packed[size] = gap
        size += 1
    return int(size)


def _add_chosen(
    packed_at: Pointer, size: int, values_at: Pointer, count: int, weight: float, total_at: Pointer, elements: int
) -> int:
    """total += values * weight, at the places that `_pack_gaps` has packed."""
    packed, values, total = carray(packed_at, size), carray(values_at, count), carray(total_at, elements)
    place, at = numpy.int64(-1), numpy.int64(0)
    for i in range(count):
        gap, shift = numpy.int64(0), numpy.int64(0)
        while packed[at] >= 128:
            gap |= numpy.int64(packed[at] & 127) << shift
            shift += 7
            at += 1
        place += gap | (numpy.int64(packed[at]) << shift)
        at += 1
        total[place] += values[i] * weight
    return 0


# --- claiming (`engine.member.claims`)


@intrinsic
def _raise_to(_: Any, cells: Any, place: Any, value: Any) -> Any:  # noqa: ARG001
    """The element at this place = the larger of the two, in one atomic instruction; what was there is returned."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.atomic_rmw("max", builder.gep(arguments[0], [arguments[1]]), arguments[2], "acq_rel")

    return types.int64(cells, types.int64, types.int64), generate


_raised: Callable[..., Any] = _raise_to  # as it is called where it is compiled


@_inlined
def _last_free(cells: Array, dealt: Array, first: int, end: int, stamp: int) -> Any:
    """How many of these shards are free, and the place of the last one."""
    free, last = 0, -1
    for i in range(first, end):
        if cells[dealt[i]] < stamp:
            free += 1
            last = i
    return free, last


def _claim(
    cells_at: Pointer, shards: int, stamp: int, dealt_at: Pointer, begins_at: Pointer, hosts: int, own: int, kept: int
) -> int:
    """The shard that a worker computes next, which is claimed then; -1: none is left to it. dealt: the shards of each worker,
    one after the other, that of worker i from begins[i] on; hosts: so many workers; own: which of them asks; kept: as in
    `orchestrator.control.claiming`, which says the rest."""
    cells, dealt, begins = carray(cells_at, shards), carray(dealt_at, shards), carray(begins_at, hosts + 1)
    for i in range(begins[own], begins[own + 1]):
        if cells[dealt[i]] < stamp and _raised(cells_at, dealt[i], stamp) < stamp:
            return int(dealt[i])
    while True:
        most, last = kept, -1
        for host in range(hosts):
            if host != own:
                free, place = _last_free(cells, dealt, begins[host], begins[host + 1], stamp)
                if free > most:
                    most, last = free, place
        if last < 0:
            return -1
        if _raised(cells_at, dealt[last], stamp) < stamp:
            return int(dealt[last])
