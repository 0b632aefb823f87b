"""Few elements of a vector: the largest ones, their places as gaps, and sums of such.

    places = the k largest magnitudes, of equal ones the first; none of zeros
    packed = the distance of each place from the one before, in bytes of 7 bits
    values = rounded to the nearest with 8 bits (bfloat16), ties to even: two bytes each
    mean   = sum of values * weight, shard after shard, in float64

Vectors on a device are searched there by operations of torch, those of one length together, with the same choice. Elements are
packed in host memory, and added up where their sum is wanted: on a device those of many vectors are read and added together.

These sums are not exact, so they are made in one order, that of the shards, wherever the shards are. The order is part of the
result; who adds up is not.

Source: gaps in variable bytes as inverted indices have them; Lin et al., "Deep gradient compression" (2018), for the choice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy
import torch
from numpy.typing import NDArray

from orchestrator.numerics import foreach
from orchestrator.numerics.copy_stream import page_locked
from orchestrator.numerics.enqueued import collected
from orchestrator.numerics.exact import LOOPS, MAGNITUDE, in_host_memory, start_of

TOGETHER: Final = 1 << 24  # elements that operations of torch take at once: of several vectors, or of a longer one
NARROW: Final = 1 << 31  # elements of a vector whose places int32 holds
_DIGITS: Final = 2048
_MOST_BYTES: Final = 9  # of a gap
_VALUE_BYTES: Final = 2
_LARGEST: Final = 3.3895313892515355e38  # of bfloat16; what is above would become infinite


@dataclass(frozen=True)
class Chosen:
    """Elements of one vector, in host memory. packed: their places, uint8; values: float32, of which the upper 16 bits tell
    all."""

    packed: torch.Tensor
    values: torch.Tensor

    @classmethod
    def of(cls, vector: torch.Tensor, count: int, *, keeps: bool) -> Self:
        """The `count` largest elements of a float32 vector in host memory. keeps: what rounding leaves of them takes their
        place in it."""
        places = _chosen(vector, min(count, vector.numel()))
        exact = vector[places]
        values = rounded(exact)
        if keeps:
            vector[places] = exact - values
        return cls.at(places, values)

    @classmethod
    def at(cls, places: torch.Tensor, values: torch.Tensor) -> Self:
        """These values at these places (int64), which are in order."""
        packed = torch.empty(_MOST_BYTES * places.numel(), dtype=torch.uint8)
        size = LOOPS["pack_gaps"](start_of(places), places.numel(), start_of(packed))
        return cls(packed[:size].clone(), values)

    def add(self, weight: float, total: torch.Tensor) -> None:
        """total (float64, in host memory) += weight * these."""
        packed, values = start_of(self.packed), start_of(self.values, torch.float32)
        count = self.values.numel()
        LOOPS["add_chosen"](
            packed, self.packed.numel(), values, count, weight, start_of(total, torch.float64), total.numel()
        )


def of_each(vectors: Sequence[torch.Tensor | None], counts: Sequence[int], *, keeps: bool) -> list[Chosen | None]:
    """The largest elements of several vectors, as `Chosen.of`. All lie in host memory, or on one device."""
    found: list[Chosen | None] = [None] * len(vectors)
    alike = defaultdict[tuple[int, int], list[tuple[int, torch.Tensor]]](list)
    for index, (vector, count) in enumerate(zip(vectors, counts, strict=True)):
        if vector is None:
            continue
        if in_host_memory(vector):
            found[index] = Chosen.of(vector, count, keeps=keeps)
        else:
            alike[vector.numel(), min(count, vector.numel())].append((index, vector))
    for (elements, count), listed in alike.items():
        most = max(1, TOGETHER // max(1, elements))
        for start in range(0, len(listed), most):
            some = listed[start : start + most]
            chosen = _together([vector for _, vector in some], count, keeps=keeps)
            for (index, _), one in zip(some, chosen, strict=True):
                found[index] = one
    return found


def add_each(vectors: Sequence[Chosen | None], starts: Sequence[int], weight: float, total: torch.Tensor) -> None:
    """total (float64, on a device) += weight * the elements of each vector, of which the first has its place at its start."""
    found = [(one, start) for one, start in zip(vectors, starts, strict=True) if one is not None and one.values.numel()]
    if not found:
        return
    packed, values = _joined([one.packed for one, _ in found], total), _joined([one.values for one, _ in found], total)
    numbers = torch.tensor([[one.values.numel(), start] for one, start in found]).t().contiguous()
    counts, firsts = _joined([numbers], total)
    # No place comes twice.
    total.index_add_(0, _places(packed, counts, firsts, values.numel()), values.double().mul_(weight))


def _joined(tensors: Sequence[torch.Tensor], beside: torch.Tensor) -> torch.Tensor:
    """The tensors as one where another tensor is, on a device."""
    whole = page_locked(torch.cat([*tensors]), beside.device)
    return beside.new_empty(whole.shape, dtype=whole.dtype).copy_(whole, non_blocking=True)


def _places(packed: torch.Tensor, counts: torch.Tensor, starts: torch.Tensor, elements: int) -> torch.Tensor:
    """The places that were packed for several vectors, one behind the other: of each so many, counted from its start on."""
    is_last = packed < 128  # of the bytes of a gap
    lasts = is_last.nonzero().flatten()
    behind = is_last.cumsum(0) - is_last.long()  # so many gaps
    firsts = torch.cat([lasts.new_zeros(1), lasts + 1])[behind]
    digits = torch.ones_like(behind).cumsum(0) - 1 - firsts
    reached = ((packed & 127).long() << 7 * digits).cumsum(0)[lasts]  # as if all were one vector
    before = torch.cat([reached.new_zeros(1), reached])[counts.cumsum(0) - counts]
    return reached - 1 + torch.repeat_interleave(starts - before, counts, output_size=elements)


def _together(vectors: Sequence[torch.Tensor], count: int, *, keeps: bool) -> list[Chosen]:
    """The `count` largest elements of each of these vectors of one length, on a device. Waits for it three times."""
    elements = vectors[0].numel()
    if not count:
        return [Chosen.at(torch.empty(0, dtype=torch.int64), torch.empty(0)) for _ in vectors]
    values = torch.stack([*vectors]) if len(vectors) > 1 else vectors[0].view(1, -1)
    is_chosen, counts = _taken(values, count)
    places = is_chosen.flatten().nonzero().flatten()
    exact = values.view(-1)[places]
    sent = rounded(exact)
    if keeps:
        values.view(-1)[places] = exact - sent
        if len(vectors) > 1:
            foreach.copy(vectors, values.unbind())
    within = (places % elements).to(torch.int32 if elements <= NARROW else torch.int64)
    in_host = collected(within.nbytes + sent.nbytes, [(0, within), (within.nbytes, sent)])
    pairs = zip(
        torch.split(in_host[: within.nbytes].view(within.dtype).long(), counts),
        torch.split(in_host[within.nbytes :].view(torch.float32).clone(), counts),
        strict=True,
    )
    return [Chosen.at(chosen_places, chosen_values) for chosen_places, chosen_values in pairs]


def _taken(values: torch.Tensor, count: int) -> tuple[torch.Tensor, list[int]]:
    """A mask of the `count` largest elements of each row, and how many they are: of equal ones the first, and none of zeros.
    The order in which `topk` finds equal elements does not show."""
    bits = values.view(torch.int32) & MAGNITUDE
    least = bits.topk(count, sorted=False).values.amin(1, keepdim=True).clamp_(min=1)
    taken = bits >= least
    counts: list[int] = taken.sum(1).tolist()
    if max(counts) > count:  # more are equal than are wanted
        above = bits > least
        left = count - above.sum(1, keepdim=True)
        taken = above | (taken & ((taken & ~above).cumsum(1) <= left))
        counts = taken.sum(1).tolist()
    return taken, counts


def _chosen(vector: torch.Tensor, count: int) -> torch.Tensor:
    """The places of the `count` largest elements, in order; of equal ones the first, and none of zeros."""
    histogram = torch.empty(_DIGITS, dtype=torch.int64)
    places = torch.empty(count, dtype=torch.int64)
    at = start_of(vector, torch.float32)
    return places[: LOOPS["choose"](at, vector.numel(), count, start_of(histogram), start_of(places))]


def rounded(values: torch.Tensor) -> torch.Tensor:
    """Each of these finite float32 values rounded to the nearest bfloat16, as float32. Computed in integers, so alike on
    every processor and device."""
    bits = values.clamp(-_LARGEST, _LARGEST).view(torch.int32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) & -0x10000).view(torch.float32)


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
