"""Sums of few levels: contributions rounded to integers of 8 or 16 bits, which add up without loss and travel as they are.

    spacing = largest / levels                       per tensor; largest: |x * weight| over all shards of the step
    level   = round(x * weight / spacing)            half to even; |level| <= levels
    mean    = sum of all levels * spacing / total weight

With levels = (2**(bits - 1) - 1) // shards every partial sum of any shards fits the integers, whatever the schedule. A shard
may keep what rounding dropped, x - level * spacing / weight, and add it to its next contribution (error feedback).

It is the grid of `exact` with few levels; but since it has none to spare, `largest` has to be that of the step itself.
Source: Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed training of speech
DNNs" (2014), for the feedback; integers that add up: Xin et al. and others, SwitchML (2021), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import torch
from numpy.typing import NDArray

from orchestrator.numerics.exact import LOOPS, loop, start_of, weighted
from orchestrator.numerics.grid import ABSENT


def levels_of(bits: int, shards: int) -> int:
    """How many levels above zero, and as many below, a contribution may have."""
    return int((2 ** (bits - 1) - 1) // shards)


def spacing_of(largest: float, levels: int) -> float:
    """The spacing of one tensor. largest: the largest |x * weight| of all shards."""
    return largest / levels


def add_levels(
    values: torch.Tensor, weight: float, spacing: float, levels: int, total: torch.Tensor, *, keeps: bool
) -> None:
    """total += levels of weight * values. Both 1-D, contiguous; values: float32, total: int8 or int16.

    keeps: what rounding dropped takes the values' place. If the spacing is zero, all values are, and nothing changes.
    """
    assert values.numel() == total.numel()
    if spacing == 0 or not values.numel():
        return
    place = start_of(values, torch.float32)
    loop("quantize", total)(
        place, values.numel(), weight / spacing, spacing / weight, float(levels), start_of(total), keeps
    )


def mean_of_levels(total: torch.Tensor, spacing: float, total_weight: float, result: torch.Tensor) -> None:
    """result (float32) = total * spacing / total_weight; infinite where float32 does not hold that."""
    assert result.numel() == total.numel()
    factor = spacing / total_weight
    loop("dequantize", total)(start_of(total), total.numel(), factor, start_of(result, torch.float32))


def magnitudes(tensors: Sequence[torch.Tensor | None], weight: float) -> NDArray[numpy.int64]:
    """For each tensor (1-D, contiguous, float32) the bits of its largest |weight * element| as a float64; ABSENT for no
    tensor. The bits of infinity and NaN lie above those of every number."""
    largest = numpy.array(
        [ABSENT if t is None else LOOPS["largest"](start_of(t, torch.float32), t.numel()) for t in tensors], numpy.int32
    )
    return weighted(largest, numpy.array([weight]))
