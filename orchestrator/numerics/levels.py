"""Sums of few levels: contributions rounded to integers of 8 or 16 bits, which add up without loss and travel as they are.

    spacing = largest / levels                       per tensor; largest: |x * weight| over all shards of the step
    level   = round(x * weight / spacing)            half to even; |level| <= levels
    mean    = sum of all levels * spacing / total weight

With levels = (2**(bits - 1) - 1) // shards every partial sum of any shards fits the integers, whatever the schedule. A shard
may keep what rounding dropped, x - level * spacing / weight, and add it to its next contribution (error feedback).

It is the grid of `exact` with few levels; but since it has none to spare, `largest` has to be that of the step itself.

Values in host memory go through compiled loops (`loops`). On a device a kernel gives the same bits in one pass over
all tensors, and so do operations of torch in fifteen, a piece at a time, since they work in float64.
Source: Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed training of speech
DNNs" (2014), for the feedback; integers that add up: Xin et al. and others, SwitchML (2021), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import torch

from orchestrator.numerics import foreach
from orchestrator.numerics.exact import ANCHOR, LOOPS, in_host_memory, loop, start_of
from orchestrator.numerics.grid import ABSENT

_PIECE: Final = 1 << 22  # elements that operations of torch take at once


class Rounding(NamedTuple):
    """A tensor that is rounded to levels, which are added up."""

    values: torch.Tensor  # float32, 1-D
    factor: float  # levels for each unit of the values
    back: float  # what a level is worth
    total: (
        torch.Tensor
    )  # int8 or int16: gets the values * factor, rounded half to even and held within the levels, added


class Quantizer(Protocol):
    """Adds up levels on a device."""

    def quantize(
        self,
        rows: Sequence[Rounding],  # on the device, their totals of one type
        levels: float,  # the most, on either side of zero
        *,
        keeps: bool,  # what rounding dropped takes the values' place
    ) -> None: ...


def levels_of(bits: int, shards: int) -> int:
    """How many levels above zero, and as many below, a contribution may have."""
    return int((2 ** (bits - 1) - 1) // shards)


def spacing_of(largest: float, levels: int) -> float:
    """The spacing of one tensor. largest: the largest |x * weight| of all shards."""
    return largest / levels


def add_levels(
    values: torch.Tensor, weight: float, spacing: float, levels: int, total: torch.Tensor, *, keeps: bool
) -> None:
    """total += levels of weight * values. Both 1-D, contiguous, in host memory; values: float32, total: int8 or int16.

    keeps: as of `Quantizer`. If the spacing is zero, all values are, and nothing changes.
    """
    assert values.numel() == total.numel()
    if spacing and values.numel():
        numbers = weight / spacing, spacing / weight, float(levels), start_of(total), keeps
        loop("quantize", total)(start_of(values, torch.float32), values.numel(), *numbers)


def add_levels_of_each(
    tensors: Sequence[torch.Tensor | None],
    weight: float,
    spacings: Sequence[float],
    levels: int,
    totals: Sequence[torch.Tensor],
    *,
    keeps: bool,
    on_device: Quantizer | None = None,
) -> None:
    """As `add_levels` for each of these tensors, also such as lie on a device. on_device: None for operations of torch."""
    rows = []
    for values, spacing, total in zip(tensors, spacings, totals, strict=True):
        if values is not None and in_host_memory(values):
            add_levels(values, weight, spacing, levels, total, keeps=keeps)
        elif values is not None and spacing:
            rows.append(Rounding(values, weight / spacing, spacing / weight, total))
    if rows:
        quantize = quantize_by_operations if on_device is None else on_device.quantize
        quantize(rows, float(levels), keeps=keeps)


def quantize_by_operations(rows: Sequence[Rounding], levels: float, *, keeps: bool) -> None:
    """As `Quantizer.quantize`."""
    for values, factor, back, total in rows:
        for part, sums in zip(torch.split(values, _PIECE), torch.split(total, _PIECE), strict=True):
            level = part.double().mul_(factor).add_(ANCHOR).sub_(ANCHOR).clamp_(-levels, levels)
            sums.add_(level.to(sums.dtype))
            if keeps:
                part.copy_(part.double().sub_(level.mul_(back)))


def mean_of_levels(total: torch.Tensor, spacing: float, total_weight: float, result: torch.Tensor) -> None:
    """result (float32) = total * spacing / total_weight; infinite where float32 does not hold that. Both on one device."""
    assert result.numel() == total.numel()
    factor = spacing / total_weight
    if in_host_memory(total):
        loop("dequantize", total)(start_of(total), total.numel(), factor, start_of(result, torch.float32))
        return
    for part, mean in zip(torch.split(total, _PIECE), torch.split(result, _PIECE), strict=True):
        mean_of_levels_by_operations(part, factor, mean)


def mean_of_levels_by_operations(total: torch.Tensor, factor: float, result: torch.Tensor) -> None:
    """result = total * factor."""
    result.copy_(total.double().mul_(factor))


def largest(tensors: Sequence[torch.Tensor | None], beside: torch.Tensor) -> torch.Tensor:
    """For each tensor (1-D, contiguous, float32) the bits of its largest element without sign, as int32 where `beside` and
    the tensors are; ABSENT for no tensor. The bits of infinity and NaN lie above those of every number."""
    if in_host_memory(beside):
        bits = [ABSENT if t is None else LOOPS["largest"](start_of(t, torch.float32), t.numel()) for t in tensors]
        return torch.tensor(bits, dtype=torch.int32)
    return largest_by_operations(tensors, beside)


def largest_by_operations(tensors: Sequence[torch.Tensor | None], beside: torch.Tensor) -> torch.Tensor:
    """As `largest`; all NaN have the same bits. It waits for nothing."""
    absent = beside.new_full((), ABSENT, dtype=torch.int32)
    zero = beside.new_zeros((), dtype=torch.int32)
    found = iter(foreach.norms([t for t in tensors if t is not None and t.numel()], math.inf))
    return torch.stack([absent if t is None else next(found).view(torch.int32) if t.numel() else zero for t in tensors])
