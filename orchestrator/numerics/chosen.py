"""Few elements of a vector: the largest ones, their places as gaps, and sums of such.

    places = the k largest magnitudes, of equal ones the first; none of zeros
    packed = the distance of each place from the one before, in bytes of 7 bits
    values = rounded to the nearest with 8 bits (bfloat16), ties to even: two bytes each
    mean   = sum of values * weight, shard after shard, in float64

A vector on a device is searched there by operations of torch, with the same choice. Elements are packed in host memory, and
added up where their sum is wanted.

These sums are not exact, so they are made in one order, that of the shards, wherever the shards are. The order is part of the
result; who adds up is not.

Source: gaps in variable bytes as inverted indices have them; Lin et al., "Deep gradient compression" (2018), for the choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy
import torch
from numpy.typing import NDArray

from orchestrator.numerics.exact import LOOPS, MAGNITUDE, in_host_memory, start_of, there

_DIGITS: Final = 2048
_MOST_BYTES: Final = 9  # of a gap
_VALUE_BYTES: Final = 2
_LARGEST: Final = numpy.float32(3.3895313892515355e38)  # of bfloat16; what is above would become infinite


@dataclass(frozen=True)
class Chosen:
    """Elements of one vector, in host memory. packed: their places, uint8; values: float32, of which the upper 16 bits tell
    all."""

    packed: torch.Tensor
    values: torch.Tensor

    @classmethod
    def of(cls, vector: torch.Tensor, count: int, *, keeps: bool) -> Self:
        """The `count` largest elements of a float32 vector. keeps: what rounding leaves of them takes their place in it."""
        choose = _chosen if in_host_memory(vector) else chosen_by_operations
        places = choose(vector, min(count, vector.numel()))
        exact = vector[places]
        found, bits = torch.stack([places, exact.view(torch.int32).long()]).cpu()  # a device is asked once
        values = rounded(bits.to(torch.int32).view(torch.float32))
        packed = torch.empty(_MOST_BYTES * found.numel(), dtype=torch.uint8)
        size = LOOPS["pack_gaps"](start_of(found), found.numel(), start_of(packed))
        if keeps:
            vector[places] = exact - there(values, vector)
        return cls(packed[:size].clone(), values)

    def add(self, weight: float, total: torch.Tensor) -> None:
        """total (float64) += weight * these."""
        if not in_host_memory(total):
            added = self.values.double().mul_(weight)
            total.index_add_(0, there(self._places(), total), there(added, total))  # no place comes twice
            return
        packed, values = start_of(self.packed), start_of(self.values, torch.float32)
        count = self.values.numel()
        LOOPS["add_chosen"](
            packed, self.packed.numel(), values, count, weight, start_of(total, torch.float64), total.numel()
        )

    def _places(self) -> torch.Tensor:
        """The places that are packed, int64."""
        packed = self.packed.numpy().astype(numpy.int64)
        if not packed.size:
            return torch.empty(0, dtype=torch.int64)
        ends = numpy.flatnonzero(packed < 128)
        starts = numpy.concatenate([[0], ends[:-1] + 1])
        digits = numpy.arange(packed.size) - numpy.repeat(starts, ends - starts + 1)
        gaps = numpy.add.reduceat((packed & 127) << 7 * digits, starts)
        return torch.from_numpy(gaps.cumsum() - 1)


def _chosen(vector: torch.Tensor, count: int) -> torch.Tensor:
    """The places of the `count` largest elements, in order; of equal ones the first, and none of zeros."""
    histogram = torch.empty(_DIGITS, dtype=torch.int64)
    places = torch.empty(count, dtype=torch.int64)
    at = start_of(vector, torch.float32)
    return places[: LOOPS["choose"](at, vector.numel(), count, start_of(histogram), start_of(places))]


def chosen_by_operations(vector: torch.Tensor, count: int) -> torch.Tensor:
    """As `_chosen`, on any device. The order in which `topk` finds equal elements does not show."""
    if not count:
        return torch.empty(0, dtype=torch.int64, device=vector.device)
    bits = vector.view(torch.int32) & MAGNITUDE
    least = bits.topk(count, sorted=False).values.min().clamp(min=1)
    found = (bits >= least).nonzero().flatten()
    if len(found) <= count:
        return found
    above = bits[found] > least  # more are equal than are wanted
    return found[above | ((~above).cumsum(0) <= count - above.sum())]


def rounded(values: torch.Tensor) -> torch.Tensor:
    """Each of these finite float32 values rounded to the nearest bfloat16, as float32. Computed in integers, so alike on
    every processor."""
    bits = numpy.clip(values.numpy(), -_LARGEST, _LARGEST).view(numpy.uint32)
    up = numpy.uint32(0x7FFF) + ((bits >> numpy.uint32(16)) & numpy.uint32(1))
    return torch.from_numpy(((bits + up) & numpy.uint32(0xFFFF0000)).view(numpy.float32))


@dataclass(frozen=True)
class ChosenRow:
    """The elements that one shard has chosen of each vector; None for a vector of which it has none."""

    shard: int
    weight: float
    vectors: Sequence[Chosen | None]


def pack(rows: Sequence[ChosenRow]) -> torch.Tensor:
    """Rows as bytes (uint8): numbers, then all values, then all gaps."""
    numbers = [len(rows)]
    for row in rows:
        numbers += [row.shard, int(numpy.float64(row.weight).view(numpy.int64))]
        for chosen in row.vectors:
            numbers += [-1, 0] if chosen is None else [chosen.values.numel(), chosen.packed.numel()]
    found = [chosen for row in rows for chosen in row.vectors if chosen is not None]
    head = torch.tensor(numbers, dtype=torch.int64).view(torch.uint8)
    values = [(each.values.view(torch.int32) >> 16).to(torch.int16).view(torch.uint8) for each in found]
    return torch.cat([head, *values, *(each.packed for each in found)])


def unpack(payload: torch.Tensor, vectors: int) -> list[ChosenRow]:
    """The rows that were packed; so many vectors in each."""
    count = int(_numbers(payload, 1)[0])
    width = 2 + 2 * vectors
    numbers = _numbers(payload, 1 + count * width)[1:].reshape(count, width)
    at = 8 * (1 + count * width)
    gaps = at + _VALUE_BYTES * int(numbers[:, 2::2].clip(0).sum())
    rows = []
    for shard, weight, *sizes in numbers.tolist():
        found: list[Chosen | None] = []
        for elements, size in zip(sizes[::2], sizes[1::2], strict=True):
            if elements < 0:
                found.append(None)
                continue
            end = at + _VALUE_BYTES * elements
            values = (payload[at:end].clone().view(torch.int16).to(torch.int32) << 16).view(torch.float32)
            found.append(Chosen(payload[gaps : gaps + size].contiguous(), values))
            at, gaps = end, gaps + size
        rows.append(ChosenRow(shard, float(numpy.int64(weight).view(numpy.float64)), found))
    return rows


def _numbers(payload: torch.Tensor, count: int) -> NDArray[numpy.int64]:
    found: NDArray[numpy.int64] = payload[: 8 * count].clone().view(torch.int64).numpy()
    return found
