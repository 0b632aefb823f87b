"""The part of an exact sum that a device computes, behind one interface, and the accumulator over it.

    Operations    operations of torch in float64, for any device. They are the oracle of the kernels, and stand in for them.
    Compiled      `sums.cu`, compiled for the card at hand (`compiling.py`). It takes one pass where the operations take five.
    Plain         for `reduction: fast`: float32, in the order in which shards come.

The first two give the bits of `numerics.exact` (rule A1). One contract suite holds them (`tests/numerics/device`). Work is
enqueued on torch's current stream. `Accumulator.weights` and `complete`, `Updating`, and `finish` of `sums_on` read an answer,
and wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from itertools import starmap
from operator import is_
from typing import Final, NamedTuple, Protocol

import numpy
import torch
from numpy.typing import NDArray

from orchestrator.numerics.enqueued import collecting, mark_of
from orchestrator.numerics.exact import ANCHOR, MAGNITUDE, Sums, Tensors, fingerprint_by_operations, in_order, weighted
from orchestrator.numerics.fixed_point import LIMIT, Pieces
from orchestrator.numerics.grid import ABSENT, Grid
from orchestrator.numerics.layout import Layout, Run, Slot
from orchestrator.numerics.levels import Quantizer, quantize_by_operations
from orchestrator.numerics.lossless_packing import PackedVector, most_bytes, pack

_WHOLE: Final = 2.0**51  # from here on to add an anchor rounds no more
_ROWS: Final = 32  # of largest bits, that are prepared at once
_AT_ONCE: Final = 1 << 22  # elements, of which an operation may keep copies
SIZE_BYTES: Final = 8  # of the number that stands before what `Packer.pack` writes


class Adder(Protocol):
    """Adds shards onto the total of one layout, which it was made for."""

    def __call__(
        self,
        tensors: Sequence[torch.Tensor | None],  # as the slots say, on the device
        weight: float | torch.Tensor,  # float64, one element on the device, with 0 in which nothing is added
        anchors: torch.Tensor,  # float64, by slot; 0 where the grid is not set
        largest: torch.Tensor,  # int32, by slot: gets the largest bits of an element without sign, where that is more
        *,
        fresh: bool,  # what the total holds does not count
    ) -> None: ...

    def recording(self, shards: int) -> AbstractContextManager[object]:
        """As of `Accumulator.recording`."""


class Packer(Protocol):
    """Makes and reads the packed form of `lossless_packing` on a device, to the byte."""

    def pack(
        self,
        values: torch.Tensor,  # float64 or int64
        into: torch.Tensor,  # uint8, `packed_room` of the elements: gets how many bytes follow (int64), and those
    ) -> None: ...

    def unpack(
        self,
        packed: PackedVector,  # in host memory
        base: torch.Tensor | None,  # of the elements' dtype; may be `into`
        into: torch.Tensor,  # gets the elements, or base + them
    ) -> None:
        """Raises ValueError as `PackedVector` does, before anything is enqueued."""


class Kernels(Packer, Quantizer, Protocol):
    """The operations of exact sums on one device. dtype: of totals and their parts."""

    dtype: torch.dtype

    def adder(self, layout: Layout, total: torch.Tensor) -> Adder:
        """Make what adds shards onto a total. total: of the layout's size; of float32 where sums are not exact."""

    def join(
        self,
        parts: Sequence[torch.Tensor],  # whole blocks
        into: torch.Tensor,  # gets their sum, from left to right; may be the first part
    ) -> None: ...

    def finish(
        self,
        parts: Sequence[torch.Tensor],  # whole blocks, added up from left to right
        divisor: float,
        result: torch.Tensor,  # float32: gets the quotient, cast once
        first_block: int,  # of the parts in the layout
        fingerprint: torch.Tensor,  # int64, one element: that of the result is added to it, modulo 2**64
    ) -> None: ...

    def differ(
        self,
        after: torch.Tensor,  # float32
        before: torch.Tensor,  # float32
        divisor: int,
        lsb: float,  # a power of two
        into: torch.Tensor,  # int64: gets (after - before) / divisor / lsb, rounded half to even
        strange: torch.Tensor,  # int32, one element: gets 1 where one is not finite or not below 2**62, for which 0 stands
    ) -> None: ...

    def absorb(
        self,
        update: torch.Tensor,  # int64, whole blocks
        sums: Sequence[torch.Tensor],  # one to three of the same: the update is added to each
        fingerprint: torch.Tensor,  # int64, one element: that of the update is added to it, modulo 2**64
    ) -> None: ...


class AddedShards(NamedTuple):
    """The shards that an accumulator has taken in: of each its largest bits and its weight."""

    largest: list[torch.Tensor]
    weights: list[float | torch.Tensor]


class Accumulator:
    """As `exact.Accumulator`, of totals on a device. Shards are added as they come, so none waits."""

    most_waiting = 1

    def __init__(self, layout: Layout, total: torch.Tensor, kernels: Kernels, runs: Sequence[Run] = ()) -> None:
        """runs: all of the layout, if it is a part of a larger one, in which `finished` is its part of the fingerprint."""
        self._slots = layout.slots
        self._runs = runs or [Run(0, layout.size, 0)]
        self._total = total
        self._kernels = kernels
        self._add = kernels.adder(layout, total)
        self._grid: Grid | None = None
        self._anchors = total.new_empty(len(self._slots), dtype=torch.float64)
        self._known: Tensors | None = None  # the last ones, where they lie as the slots say and will be the same
        # Each shard has a row of largest bits. The next step takes the same rows again.
        self._tables: list[torch.Tensor] = []
        self._rows: list[torch.Tensor] = []
        self.clear()

    def clear(self) -> None:
        self._taken = 0  # rows
        self._largest: list[torch.Tensor] = []
        self._weights: list[float | torch.Tensor] = []
        self.finished: torch.Tensor | None = None  # one element; to look at it waits for the result

    def add(self, tensors: Tensors, weight: float | torch.Tensor, grid: Grid) -> None:
        """As `exact.Accumulator.add`; the tensors may change in what is enqueued after this. weight: a float64 on the device,
        if nobody has looked at it; where it is 0, nothing was added."""
        if tensors is not self._known:
            # Repetitions of a recording contribute the same tuple each time.
            given, tensors = tensors, tuple(starmap(_laid_out, zip(tensors, self._slots, strict=True)))
            stays = isinstance(given, tuple) and all(map(is_, given, tensors))
            self._known = given if stays else None
        self.use(grid)
        largest = self._row()
        self._add(tensors, weight, self._anchors, largest, fresh=not self._weights)
        self._largest.append(largest)
        self._weights.append(weight)

    def use(self, grid: Grid) -> None:
        """Round onto this grid in all that is enqueued from now on, also by a recording."""
        if grid is not self._grid:
            self._grid = grid
            anchors = moved([0.0 if e is None else ANCHOR * 2.0**e for e in grid.exponents], self._total)
            self._anchors.copy_(anchors)

    def recording(self, shards: int) -> AbstractContextManager[object]:
        """Within the block as many shards are added by what is recorded, to be replayed behind it. Gives what has to live as
        long as the recording."""
        return self._add.recording(shards)

    @property
    def taken(self) -> AddedShards:
        """The shards that were added since `clear`."""
        return AddedShards([*self._largest], [*self._weights])

    def take(self, taken: AddedShards) -> None:
        """A recording has added these once more, in place of all that was added before."""
        self._largest, self._weights = [*taken.largest], [*taken.weights]
        self._taken = len(taken.largest)

    def _row(self) -> torch.Tensor:
        """A row that has nothing in it, for the largest bits of the next shard. One call prepares many rows."""
        index = self._taken
        self._taken += 1
        if index % _ROWS == 0:
            if index == len(self._rows):
                table = self._total.new_empty((_ROWS, len(self._slots)), dtype=torch.int32)
                self._tables.append(table)
                self._rows.extend(table.unbind())
            self._tables[index // _ROWS].fill_(ABSENT)
        return self._rows[index]

    def weights(self) -> list[float]:
        """The weights since `clear`; those that nobody has looked at are read all at once."""
        late = {index: weight for index, weight in enumerate(self._weights) if isinstance(weight, torch.Tensor)}
        known = dict(zip(late, torch.cat([*late.values()]).tolist() if late else (), strict=True))
        found = [
            known[index] if isinstance(weight, torch.Tensor) else weight for index, weight in enumerate(self._weights)
        ]
        added = [index for index, weight in enumerate(found) if weight or index not in known]
        self._largest = [self._largest[index] for index in added]
        self._weights = [found[index] for index in added]
        return found

    def complete(self, alone: tuple[float, torch.Tensor] | None = None) -> NDArray[numpy.int64]:
        """As `exact.Accumulator.complete`. Waits for the magnitudes, and so for all that was added, and not for the result."""
        self.weights()
        if not self._weights:
            self._total.zero_()
            return numpy.empty((0, len(self._slots)), numpy.int64)
        largest = torch.stack(self._largest)
        bytes_here = collecting(largest.nbytes, [(0, largest.reshape(-1))])
        mark = mark_of(self._total.device)
        # Before the wait, so that the device has something to do meanwhile.
        self.finished = None if alone is None else self._finish(*alone)
        if mark is not None:
            mark.synchronize()
        return weighted(bytes_here.view(torch.int32).view(largest.shape).numpy(), numpy.array(self._weights)[:, None])

    def _finish(self, divisor: float, result: torch.Tensor) -> torch.Tensor:
        """Enqueue the result; returns the fingerprint, as `_finished`."""
        prints = [
            _finished(self._kernels, [self._total[start:end]], divisor, result[start:end], first_block)
            for start, end, first_block in self._runs
        ]
        return sum(prints[1:], prints[0])


def _laid_out(tensor: torch.Tensor | None, slot: Slot) -> torch.Tensor | None:
    return None if tensor is None else in_order(tensor, slot)


def _finished(
    kernels: Kernels, parts: Sequence[torch.Tensor], divisor: float, result: torch.Tensor, first_block: int
) -> torch.Tensor:
    """As `exact.finish`; the fingerprint is one element, when the device has it."""
    assert all(part.numel() == result.numel() for part in parts)
    fingerprint = result.new_zeros(1, dtype=torch.int64)
    kernels.finish(parts, divisor, result, first_block, fingerprint)
    return fingerprint


class Updating:
    """Implements `fixed_point.Updating` on a device. Both wait for what they return."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def differ(
        self, pieces: Pieces, after: torch.Tensor, before: torch.Tensor, divisor: int, into: torch.Tensor
    ) -> bool:
        strange = into.new_zeros(1, dtype=torch.int32)
        for start, end, lsb in pieces:
            part = slice(start, end)
            self._kernels.differ(after[part], before[part], divisor, lsb, into[part], strange)
        return not int(strange)

    def absorb(self, update: torch.Tensor, *sums: torch.Tensor) -> int:
        fingerprint = update.new_zeros(1)
        self._kernels.absorb(update, sums, fingerprint)
        return int(fingerprint)

    def take_in(self, update: torch.Tensor, total: torch.Tensor, fingerprint: torch.Tensor) -> None:
        self._kernels.absorb(update, [total], fingerprint)


def sums_on(kernels: Kernels) -> Sums:
    """The means of totals on a device. A partial sum that has come through host memory goes to the device first."""

    def finish(parts: Sequence[torch.Tensor], divisor: float, result: torch.Tensor, first_block: int) -> int:
        return int(_finished(kernels, _all_on(result, parts), divisor, result, first_block))

    def join(parts: Sequence[torch.Tensor], into: torch.Tensor) -> None:
        kernels.join(_all_on(into, parts), into)

    return Sums(kernels.dtype, torch.float32, finish, join, kernels.unpack)


def _all_on(target: torch.Tensor, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The parts on the device of that tensor."""
    return [part.to(target.device) for part in parts]


def _kept(parts: Sequence[torch.Tensor], divisor: float, result: torch.Tensor, first_block: int) -> int:
    """As `exact.keep`."""
    assert divisor == 1.0, f"a sum of integers is asked for as it is, not divided by {divisor}"
    _joined(parts, result)
    return int(fingerprint_by_operations(result, first_block))


def _joined(parts: Sequence[torch.Tensor], into: torch.Tensor) -> None:
    """As `exact.join`, by operations of torch."""
    first, *others = _all_on(into, parts)
    into.copy_(first)
    for part in others:
        into += part


def integers_on(kernels: Packer) -> Sums:
    """`exact.INTEGERS` of totals on a device."""
    return Sums(torch.int64, torch.int64, _kept, _joined, kernels.unpack)


def packed_room(elements: int) -> int:
    """Bytes of the memory that `Packer.pack` wants."""
    return SIZE_BYTES + most_bytes(elements)


def moved(numbers: Sequence[float] | Sequence[int], beside: torch.Tensor) -> torch.Tensor:
    """These numbers as float64 or int64 on the device of that tensor, without waiting for it: a kernel that is given a number
    of Python may take it as float32."""
    dtype = torch.float64 if any(isinstance(number, float) for number in numbers) else torch.int64
    on_card = beside.device.type == "cuda"
    return torch.tensor(numbers, dtype=dtype, pin_memory=on_card).to(beside.device, non_blocking=on_card)


class Operations:
    """Implements `Kernels` with operations of torch. Each is a kernel of its own, so none is fused with another and each rounds
    once."""

    dtype = torch.float64
    quantize = staticmethod(quantize_by_operations)

    def adder(self, layout: Layout, total: torch.Tensor) -> Adder:
        return (_Adding if total.dtype == torch.float64 else _PlainAdding)(layout.slots, total)

    def join(self, parts: Sequence[torch.Tensor], into: torch.Tensor) -> None:
        _joined(parts, into)

    def finish(
        self,
        parts: Sequence[torch.Tensor],
        divisor: float,
        result: torch.Tensor,
        first_block: int,
        fingerprint: torch.Tensor,
    ) -> None:
        # By a tensor: torch multiplies by the reciprocal where a CUDA tensor is divided by a number (pytorch#191495).
        by = moved([float(divisor)], result)
        for mean, *pieces in zip(*(torch.split(each, _AT_ONCE) for each in (result, *parts)), strict=True):
            mean.copy_(reduce(torch.add, pieces) / by)
        fingerprint += fingerprint_by_operations(result.view(torch.int32), first_block)

    def differ(
        self,
        after: torch.Tensor,
        before: torch.Tensor,
        divisor: int,
        lsb: float,
        into: torch.Tensor,
        strange: torch.Tensor,
    ) -> None:
        by = moved([float(divisor), 1 / lsb], after)
        value = (after.double() - before.double()) / by[0] * by[1]
        rounded = torch.where(value.abs() < _WHOLE, value.round(), value)  # larger ones are cut off, as on a processor
        fits = rounded.abs() < LIMIT  # no number is not
        into.copy_(torch.where(fits, rounded, 0.0))
        strange |= (~fits).any()

    def absorb(self, update: torch.Tensor, sums: Sequence[torch.Tensor], fingerprint: torch.Tensor) -> None:
        for each in sums:
            each += update
        fingerprint += fingerprint_by_operations(update, 0)

    def pack(self, values: torch.Tensor, into: torch.Tensor) -> None:
        """Through host memory: torch has no operations for it."""
        here = torch.empty(into.numel(), dtype=torch.uint8)
        here[:SIZE_BYTES].view(torch.int64)[0] = pack(values.cpu(), here[SIZE_BYTES:])
        into.copy_(here)

    def unpack(self, packed: PackedVector, base: torch.Tensor | None, into: torch.Tensor) -> None:
        """As `pack`."""
        elements = packed.unpacked()
        if base is None:
            into.copy_(elements)
        else:
            torch.add(base, torch.empty_like(into).copy_(elements), out=into)


class Plain(Operations):
    """Totals in float32, as loops of torch add gradients up: their bits depend on the order of shards and workers."""

    dtype = torch.float32

    def __init__(self, shards: Kernels | None = None) -> None:
        """shards: adds those of a worker up; None: operations of torch."""
        self._shards = shards

    def adder(self, layout: Layout, total: torch.Tensor) -> Adder:
        return super().adder(layout, total) if self._shards is None else self._shards.adder(layout, total)


class _Adding:
    """Implements `Adder`."""

    def __init__(self, slots: Sequence[Slot], total: torch.Tensor) -> None:
        self._places = [total[slot.offset : slot.offset + slot.elements] for slot in slots]

    def recording(self, shards: int) -> AbstractContextManager[object]:  # noqa: ARG002
        return nullcontext()

    def __call__(
        self,
        tensors: Sequence[torch.Tensor | None],
        weight: float | torch.Tensor,
        anchors: torch.Tensor,
        largest: torch.Tensor,
        *,
        fresh: bool,
    ) -> None:
        for i, (place, tensor) in enumerate(zip(self._places, tensors, strict=True)):
            if fresh:
                place.zero_()
            if tensor is None or not tensor.numel():
                continue
            values = tensor.as_strided((tensor.numel(),), (1,))
            added = self._rounded(values, weight, anchors[i])
            most = (values.view(torch.int32) & MAGNITUDE).max()
            if isinstance(weight, torch.Tensor):
                added = torch.where(weight == 0, 0.0, added)
                most = torch.where(weight[0] == 0, largest[i], most)
            place += added
            torch.maximum(largest[i], most, out=largest[i])

    def _rounded(self, values: torch.Tensor, weight: float | torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        return (values.double() * weight + anchor) - anchor


class _PlainAdding(_Adding):
    def _rounded(
        self,
        values: torch.Tensor,
        weight: float | torch.Tensor,
        anchor: torch.Tensor,  # noqa: ARG002
    ) -> torch.Tensor:
        return values * (weight.float() if isinstance(weight, torch.Tensor) else weight)
