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
from llvmlite import ir
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
PACKING_BLOCK: Final = 512  # elements
FLOATS: Final = 9  # forms of a block, beside the width of its integers: float32
WHOLES: Final = 8  # as they are
ANCHOR_BITS: Final = 0x4338_0000_0000_0000  # of ANCHOR, as a float64
LONG_MAGNITUDE: Final = 0x7FFF_FFFF_FFFF_FFFF
LEAST_FLOAT: Final = (1023 - 126) << 52  # the bits of the least float32 that is not denormal, as a float64
LEAST_DOUBLE: Final = 1 << 52
EXPONENTS: Final = 900  # of elements that are taken for integers: no power of two that they need is out of range
_MAGNITUDE: Final = numpy.int32(0x7FFF_FFFF)  # the bits of a float32 without its sign

_any_intrinsic: Callable[..., Any] = intrinsic
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
_to_doubles, _to_longs, _to_bytes = _pointer_to(types.float64), _pointer_to(types.int64), _pointer_to(types.int8)


@_any_intrinsic
def _elsewhere(_: Any, pointer: Any, address: Any) -> Any:
    """An intrinsic: the integer as a pointer of the kind of another pointer."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[1], arguments[0].type)

    return pointer(pointer, address), generate


@_any_intrinsic
def _fetch_line(_: Any, address: Any) -> Any:
    """An intrinsic: have the processor fetch the cache line that lies there, which may be nobody's, and go on meanwhile."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), (byte, number, number, number))
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", (byte,), kind)
        to_read, near, data = (ir.Constant(number, value) for value in (0, 2, 1))
        builder.call(prefetch, (builder.inttoptr(arguments[0], byte), to_read, near, data))
        return ir.Constant(ir.IntType(32), 0)

    return types.int32(address), generate


@_inlined
def _fetch(address: int, size: int) -> None:
    """Prefetch the memory that a loop comes to next. The processor does so by itself, but not across the end of a page, and a
    block of packing is one page."""
    for line in range(0, size, 64):
        _fetch_line(address + line)


@_inlined
def _floats(address: int, elements: int) -> Any:
    """The float32 array of so many elements that lies there. Its owner has to keep it alive."""
    return carray(_to_floats(address), elements)


@_inlined
def _bits(address: int, elements: int) -> Any:
    """The same as int32."""
    return carray(_to_bits(address), elements)


@_inlined
def _doubles(address: int, elements: int) -> Any:
    return carray(_to_doubles(address), elements)


@_inlined
def _longs(address: int, elements: int) -> Any:
    return carray(_to_longs(address), elements)


@_inlined
def _bytes(address: int, elements: int) -> Any:
    return carray(_to_bytes(address), elements)


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


@_inlined
def _part(parts: Array, n: int, start: int, into: Array, kind: Pointer) -> Array:
    """The elements of a part that belong to `into`, of which it has as many from `start` on."""
    return carray(_elsewhere(kind, parts[n] + start * into.itemsize), into.size)


@_inlined
def _sum(parts: Array, count: int, start: int, into: Array, kind: Pointer) -> None:
    """into = the sum of the first `count` parts, of 2 or more, from left to right. Two or three parts come from memory
    together; `into` stays in the first-level cache. The first part may be `into`. kind: any pointer to such elements."""
    a, b = _part(parts, 0, start, into, kind), _part(parts, 1, start, into, kind)
    if count % 2:
        c = _part(parts, 2, start, into, kind)
        for i in range(into.size):
            into[i] = a[i] + b[i] + c[i]
    else:
        for i in range(into.size):
            into[i] = a[i] + b[i]
    for n in range(2 + count % 2, count, 2):
        d, e = _part(parts, n, start, into, kind), _part(parts, n + 1, start, into, kind)
        for i in range(into.size):
            into[i] = into[i] + d[i] + e[i]


@_inlined
def _two(parts: Array, start: int, scratch: Array, kind: Pointer) -> Any:
    """Two arrays whose sum is that of all parts: the second is the last part, or empty where there is only one."""
    count = parts.size
    last = _part(parts, count - 1, start, scratch, kind)
    if count > 2:
        _sum(parts, count - 1, start, scratch, kind)
        return scratch, last
    return _part(parts, 0, start, scratch, kind), last[: 0 if count == 1 else last.size]


def _join(parts_at: Pointer, count: int, elements: int, into_at: Pointer) -> int:
    """into = the sum of all parts, whole blocks; as `_sum`."""
    parts, into = carray(parts_at, count), carray(into_at, elements)
    for start in range(0, elements, BLOCK):
        _sum(parts, count, start, into[start : start + BLOCK], into_at)
    return 0


def _divide(
    parts_at: Pointer,
    count: int,
    elements: int,
    divisor: float,
    inverts: bool,
    result_at: int,
    first_block: int,
    scratch_at: Pointer,
) -> int:
    """result = the sum of the parts / divisor, and its fingerprint, which reads what is still in the cache. parts: addresses;
    scratch: a block of their kind."""
    parts, scratch = carray(parts_at, count), carray(scratch_at, BLOCK)
    found = numpy.int64(0)
    for start in range(0, elements, BLOCK):
        total, last = _two(parts, start, scratch, scratch_at)
        summed = _quotients(total, last, divisor, inverts, result_at + 4 * start)
        found += summed * (first_block + start // BLOCK + 1)
    return int(found)


def _keep(
    parts_at: Pointer, count: int, elements: int, result_at: Pointer, first_block: int, scratch_at: Pointer
) -> int:
    """result = the sum of the parts; otherwise as `_divide`. The fingerprint is that of `_fingerprint`, over whole elements."""
    parts, result, scratch = carray(parts_at, count), carray(result_at, elements), carray(scratch_at, BLOCK)
    found = numpy.int64(0)
    for start in range(0, elements, BLOCK):
        total, last = _two(parts, start, scratch, scratch_at)
        into = result[start : start + BLOCK]
        summed = numpy.int64(0)
        for i in range(into.size):
            into[i] = total[i] + last[i] if last.size else total[i]
            summed += into[i]
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


# --- claiming (`worker.member.shared_queue`)


@intrinsic
def _raise_to(_: Any, cells: Any, place: Any, value: Any) -> Any:  # noqa: ARG001
    """The element at this place = the larger of the two, in one atomic instruction; what was there is returned."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.atomic_rmw("max", builder.gep(arguments[0], [arguments[1]]), arguments[2], "acq_rel")

    return types.int64(cells, types.int64, types.int64), generate


_raised: Callable[..., Any] = _raise_to  # as it is called where it is compiled


@_inlined
def _last_free(cells: Array, assigned: Array, first: int, end: int, stamp: int) -> Any:
    """How many of these shards are free, and the place of the last one."""
    free, last = 0, -1
    for i in range(first, end):
        if cells[assigned[i]] < stamp:
            free += 1
            last = i
    return free, last


def _claim(
    cells_at: Pointer,
    shards: int,
    stamp: int,
    assigned_at: Pointer,
    begins_at: Pointer,
    hosts: int,
    own: int,
    kept: int,
) -> int:
    """The shard that a worker computes next, which is claimed then; -1: none is left to it. assigned: the shards of each
    worker, one after the other, that of worker i from begins[i] on; hosts: so many workers; own: which of them asks; kept: so
    many are left to each, which its loaders have read ahead. `worker.member.shared_queue` says the rest."""
    cells, assigned, begins = carray(cells_at, shards), carray(assigned_at, shards), carray(begins_at, hosts + 1)
    for i in range(begins[own], begins[own + 1]):
        if cells[assigned[i]] < stamp and _raised(cells_at, assigned[i], stamp) < stamp:
            return int(assigned[i])
    while True:
        most, last = kept, -1
        for host in range(hosts):
            if host != own:
                free, place = _last_free(cells, assigned, begins[host], begins[host + 1], stamp)
                if free > most:
                    most, last = free, place
        if last < 0:
            return -1
        if _raised(cells_at, assigned[last], stamp) < stamp:
            return int(assigned[last])


# --- a narrow form of 64-bit elements, for the wire (`lossless_packing`). Block by block: a head of 8 bytes (form, and an
# exponent or a shift above it), then the elements. Forms 0 to 7 are integers of so many bytes: the lower four bytes of all
# elements (from form 4 on), then the next byte of all, and so on, which a processor writes and reads many at a time. Elements
# are compared as bits, or so that no mode of the processor (flushing of denormal numbers) can make two of them equal.


@_inlined
def _trailing_zeros(value: int) -> Any:
    zeros = numpy.int64(0)
    while not value & 0xFF:
        value >>= 8
        zeros += 8
    while not value & 1:
        value >>= 1
        zeros += 1
    return zeros


@_inlined
def _length(value: int) -> Any:
    """The length in bits of an integer that is not negative."""
    bits = numpy.int64(0)
    while value:
        value >>= 1
        bits += 1
    return bits


@_inlined
def _put_integers(integers: Array, base: int, shift: int, width: int, at: int) -> None:
    """(integers - base) >> shift, in so many bytes."""
    elements = integers.size
    done = numpy.int64(0)
    if width >= 4:
        low = _bits(at, elements)
        for i in range(elements):
            low[i] = numpy.int32((integers[i] - base) >> shift)
        done = numpy.int64(4)
    while done < width:
        plane = _bytes(at + done * elements, elements)
        places = shift + 8 * done
        for i in range(elements):
            plane[i] = numpy.int8((integers[i] - base) >> places)
        done += 1


@_inlined
def _take_integers(at: int, width: int, integers: Array) -> None:
    elements = integers.size
    done = numpy.int64(0)
    if width >= 4:
        low = _bits(at, elements)
        for i in range(elements):
            integers[i] = numpy.int64(low[i]) if width == 4 else numpy.int64(low[i]) & 0xFFFF_FFFF
        done = numpy.int64(4)
    elif width > 0:
        first = _bytes(at, elements)
        for i in range(elements):
            integers[i] = numpy.int64(first[i]) if width == 1 else numpy.int64(first[i]) & 0xFF
        done = numpy.int64(1)
    while done < width:
        plane = _bytes(at + done * elements, elements)
        places = 8 * done
        if done == width - 1:  # the sign
            for i in range(elements):
                integers[i] |= numpy.int64(plane[i]) << places
        else:
            for i in range(elements):
                integers[i] |= (numpy.int64(plane[i]) & 0xFF) << places
        done += 1


@_inlined
def _put_floats(values_at: int, elements: int, at: int) -> Any:
    """The elements as float32. Returns the largest magnitude as bits, and whether some are other numbers."""
    values, bits, floats = _doubles(values_at, elements), _longs(values_at, elements), _floats(at, elements)
    largest, others = numpy.int64(0), False
    for i in range(elements):
        magnitude = bits[i] & LONG_MAGNITUDE
        largest = max(largest, magnitude)
        near = numpy.float32(values[i])
        floats[i] = near
        others |= (numpy.float64(near) != values[i]) | ((magnitude != 0) & (magnitude < LEAST_FLOAT))
    return largest, others


@_inlined
def _look(values_at: int, elements: int) -> Any:
    """Returns the largest magnitude as bits, and whether any of their bits is set."""
    bits = _longs(values_at, elements)
    largest, some = numpy.int64(0), numpy.int64(0)
    for i in range(elements):
        largest = max(largest, bits[i] & LONG_MAGNITUDE)
        some |= bits[i]
    return largest, some != 0


@_inlined
def _put_doubles(values_at: int, elements: int, at: int, scratch_at: int) -> Any:
    """Returns the bytes written."""
    head = _longs(at, 1)
    largest, others = _put_floats(values_at, min(16, elements), at + 8)
    if not others and largest > 0:  # of a sum the first few tell
        largest, others = _put_floats(values_at, elements, at + 8)
        if not others:
            head[0] = FLOATS
            return 8 + 4 * elements
    else:
        largest, some = _look(values_at, elements)
        if not some:
            head[0] = 0
            return numpy.int64(8)
    exponent = (largest >> 52) - 1023
    if -EXPONENTS < exponent < EXPONENTS:
        values, bits = _doubles(values_at, elements), _longs(values_at, elements)
        scales, powers = _doubles(scratch_at, 2), _longs(scratch_at, 2)
        powers[0], powers[1] = (1023 + 50 - exponent) << 52, (1023 - 50 + exponent) << 52
        scale, inverse = scales[0], scales[1]
        rounded, integers = _doubles(scratch_at, elements), _longs(scratch_at, elements)
        strange, found = False, numpy.int64(0)
        for i in range(elements):
            shifted = values[i] * scale + ANCHOR
            rounded[i] = shifted
            magnitude = bits[i] & LONG_MAGNITUDE
            strange |= (shifted - ANCHOR) * inverse != values[i]
            strange |= (magnitude < LEAST_DOUBLE) & (bits[i] != 0)  # -0.0 too
        for i in range(elements):
            found |= integers[i] - ANCHOR_BITS
        if not strange:
            shift = _trailing_zeros(found)
            width = (52 - shift + 7) // 8
            head[0] = width | ((exponent - 50 + shift) << 8)
            _put_integers(integers, ANCHOR_BITS, shift, width, at + 8)
            return 8 + width * elements
    return _put_whole(values_at, elements, at)


@_inlined
def _put_longs(values_at: int, elements: int, at: int) -> Any:
    """Returns the bytes written."""
    values, head = _longs(values_at, elements), _longs(at, 1)
    found, span = numpy.int64(0), numpy.int64(0)
    for i in range(elements):
        found |= values[i]
        span |= values[i] ^ (values[i] >> 63)
    shift = _trailing_zeros(found) if found else numpy.int64(0)
    width = (_length(span >> shift) + 1 + 7) // 8 if found else numpy.int64(0)
    if width == 8:
        return _put_whole(values_at, elements, at)
    head[0] = width | (shift << 8)
    _put_integers(values, 0, shift, width, at + 8)
    return 8 + width * elements


@_inlined
def _put_whole(values_at: int, elements: int, at: int) -> Any:
    head, values, whole = _longs(at, 1), _longs(values_at, elements), _longs(at + 8, elements)
    head[0] = WHOLES
    for i in range(elements):
        whole[i] = values[i]
    return 8 + 8 * elements


def _pack(values_at: int, elements: int, integers: bool, packed_at: int, scratch_at: int) -> int:
    """Returns the bytes written, at most 8 for an element and 8 for each block. integers: int64, else float64; scratch: a block
    of 8 bytes each."""
    size = numpy.int64(0)
    for start in range(0, elements, PACKING_BLOCK):
        count = min(PACKING_BLOCK, elements - start)
        _fetch(values_at + 8 * (start + PACKING_BLOCK), 8 * PACKING_BLOCK)
        if integers:
            size += _put_longs(values_at + 8 * start, count, packed_at + size)
        else:
            size += _put_doubles(values_at + 8 * start, count, packed_at + size, scratch_at)
    return int(size)


@_inlined
def _next_block(packed_at: int, size: int, at: int, elements: int, integers: bool) -> Any:
    """The offset of the block after the one that begins at `at`, or -1 if `_pack` cannot have written that one."""
    if at < 0 or at + 8 > size:
        return numpy.int64(-1)
    head = _longs(packed_at + at, 1)[0]
    form, exponent = head & 0xFF, head >> 8
    fits = 0 <= exponent < 64 if integers else -1000 <= exponent <= 1000
    following = at + 8 + (4 if form == FLOATS else form) * elements
    if form > (WHOLES if integers else FLOATS) or not fits or following > size:
        return numpy.int64(-1)
    return following


@_inlined
def _take_block(
    packed_at: int, size: int, at: int, values_at: int, elements: int, integers: bool, scratch_at: int
) -> Any:
    """The block that begins there. Returns as `_next_block`."""
    following = _next_block(packed_at, size, at, elements, integers)
    if following < 0:
        return following
    head = _longs(packed_at + at, 1)[0]
    form, exponent = head & 0xFF, head >> 8
    values, longs = _doubles(values_at, elements), _longs(values_at, elements)
    body = packed_at + at + 8
    if form == FLOATS:
        floats = _floats(body, elements)
        for i in range(elements):
            values[i] = floats[i]
    elif form == WHOLES:
        whole = _longs(body, elements)
        for i in range(elements):
            longs[i] = whole[i]
    elif form == 0:
        for i in range(elements):
            longs[i] = 0
    else:
        _take_integers(body, form, longs)
        if integers:
            for i in range(elements):
                longs[i] = longs[i] << exponent
        else:
            scales, powers = _doubles(scratch_at, 1), _longs(scratch_at, 1)
            powers[0] = (1023 + exponent) << 52
            scale = scales[0]
            for i in range(elements):
                values[i] = numpy.float64(longs[i]) * scale
    return following


@_inlined
def _take_blocks(
    packed_at: int, size: int, at: int, values_at: int, elements: int, integers: bool, scratch_at: int
) -> Any:
    """The same of several blocks."""
    for start in range(0, elements, PACKING_BLOCK):
        if at >= 0:
            count = min(PACKING_BLOCK, elements - start)
            at = _take_block(packed_at, size, at, values_at + 8 * start, count, integers, scratch_at)
    return at


def _unpack(packed_at: int, size: int, values_at: int, elements: int, integers: bool, scratch_at: int) -> int:
    """values = what `_pack` was given. scratch: 8 bytes. Returns the number of bytes read, or -1 if `_pack` cannot have
    written them."""
    return int(_take_blocks(packed_at, size, 0, values_at, elements, integers, scratch_at))


def _locate(packed_at: int, size: int, elements: int, integers: bool, places_at: Pointer) -> int:
    """places = where each block of what `_pack` was given begins. Returns as `_unpack`."""
    places = carray(places_at, (elements + PACKING_BLOCK - 1) // PACKING_BLOCK)
    at = numpy.int64(0)
    for block in range(places.size):
        places[block] = at
        at = _next_block(packed_at, size, at, min(PACKING_BLOCK, elements - block * PACKING_BLOCK), integers)
    return int(at)


def _widen_add(packed_at: int, size: int, base_at: int, total_at: int, elements: int, scratch_at: int) -> int:
    """total = base + what `_pack` was given, of float64. scratch: a block and one more. Returns as `_unpack`."""
    base, total = _doubles(base_at, elements), _doubles(total_at, elements)
    at = numpy.int64(0)
    for start in range(0, elements, PACKING_BLOCK):
        count = min(PACKING_BLOCK, elements - start)
        if at >= 0:
            at = _take_block(packed_at, size, at, scratch_at + 8, count, False, scratch_at)
            more = _doubles(scratch_at + 8, count)
            for i in range(count):
                total[start + i] = base[start + i] + more[i]
    return int(at)


def _widen_divide(
    packed_at: int,
    size: int,
    base_at: int,
    elements: int,
    divisor: float,
    inverts: bool,
    result_at: int,
    first_block: int,
    scratch_at: int,
    read_at: Pointer,
) -> int:
    """`_divide` of base + what `_pack` was given. scratch: BLOCK elements and one more; read: as `_unpack` returns."""
    base, read = _doubles(base_at, elements), carray(read_at, 1)
    found, at = numpy.int64(0), numpy.int64(0)
    for start in range(0, elements, BLOCK):
        at = _take_blocks(packed_at, size, at, scratch_at + 8, BLOCK, False, scratch_at)
        last = _doubles(scratch_at + 8, BLOCK)
        summed = _quotients(base[start : start + BLOCK], last, divisor, inverts, result_at + 4 * start)
        found += summed * (first_block + start // BLOCK + 1)
    read[0] = at
    return int(found)
