"""Few elements of a vector: the largest ones, their places as gaps, and sums of such.

    places = the k largest magnitudes, of equal ones the first; none of zeros
    packed = the distance of each place from the one before, in bytes of 7 bits
    values = rounded to the nearest with 8 bits (bfloat16), ties to even: two bytes each
    mean   = sum of values * weight, shard after shard, in float64

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

from orchestrator.numerics.exact import LOOPS, start_of

_DIGITS: Final = 2048
_MOST_BYTES: Final = 9  # of a gap
_VALUE_BYTES: Final = 2
_LARGEST: Final = numpy.float32(3.3895313892515355e38)  # of bfloat16; what is above would become infinite


@dataclass(frozen=True)
class Chosen:
    """Elements of one vector. packed: their places, uint8; values: float32, of which the upper 16 bits tell all."""

    packed: torch.Tensor
    values: torch.Tensor

    @classmethod
    def of(cls, vector: torch.Tensor, count: int, *, keeps: bool) -> Self:
        """The `count` largest elements of a float32 vector. keeps: what rounding leaves of them takes their place in it."""
        count = min(count, vector.numel())
        histogram = torch.empty(_DIGITS, dtype=torch.int64)
        places = torch.empty(count, dtype=torch.int64)
        found = LOOPS["choose"](
            start_of(vector, torch.float32), vector.numel(), count, start_of(histogram), start_of(places)
        )
        places = places[:found]
        packed = torch.empty(_MOST_BYTES * found, dtype=torch.uint8)
        size = LOOPS["pack_gaps"](start_of(places), found, start_of(packed))
        exact = vector[places]
        values = rounded(exact)
        if keeps:
            vector[places] = exact - values
        return cls(packed[:size].clone(), values)

    def add(self, weight: float, total: torch.Tensor) -> None:
        """total (float64) += weight * these."""
        packed, values = start_of(self.packed), start_of(self.values, torch.float32)
        count = self.values.numel()
        LOOPS["add_chosen"](
            packed, self.packed.numel(), values, count, weight, start_of(total, torch.float64), total.numel()
        )


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
