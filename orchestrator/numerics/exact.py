"""Exact sums: contributions rounded onto a grid, added in float64, divided and cast once (rule A1).

    M = 1.5 * 2**52 * lsb
    rounded = (x.double() * weight + M) - M      exact for |x * weight| <= 2**51 lsb

float64 addition of the rounded values is exact, hence free of order, grouping, topology and number of workers. Two tempting
shortcuts are wrong although every digest agrees with itself: a total that starts at M (ties then round by the parity of the
total), and adding float32 to M with a float64 output (torch adds in float32 and casts afterwards).

Source: pre-rounding, Demmel and Nguyen, "Fast Reproducible Floating-Point Summation" (2013), section 3.
Legend: n = elements of the layout, T = its tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from orchestrator.numerics.grid import ABSENT, Grid, magnitude_bits
from orchestrator.numerics.layout import BLOCK, Layout

_STRIDE = 16 * BLOCK  # elements finished at a time, so that a chunk's quotient is still in the cache when it is cast


def magnitudes(tensors: Sequence[torch.Tensor | None], weight: float) -> list[int]:
    """T integers: the bits of the largest |weight * element| of each tensor as a float64, ABSENT for None.

    `aminmax` hands a NaN on wherever it stands, and the bits of a NaN lie above those of infinity, so one integer comparison
    later finds every non-finite value. Reading all extremes at once costs one synchronisation instead of T.
    """
    found = [ABSENT] * len(tensors)
    present = [(i, tensor) for i, tensor in enumerate(tensors) if tensor is not None and tensor.numel()]
    if not present:
        return found
    extremes = torch.stack([extreme for _, tensor in present for extreme in torch.aminmax(tensor.detach())])
    values = extremes.abs().double().tolist()
    for (i, _), low, high in zip(present, values[::2], values[1::2], strict=True):
        found[i] = max(magnitude_bits(low * weight), magnitude_bits(high * weight))
    return found


class Accumulator:
    """The running total of one worker's contributions.

    total: float64 (exact) or float32 (fast), of the layout's size; the caller owns it and clears it with `clear`.
    """

    def __init__(self, layout: Layout, total: torch.Tensor, *, exact: bool) -> None:
        self._total = total
        self._views = layout.views(total)
        self._scratch = torch.zeros_like(total) if exact else None
        self._rounded = layout.views(self._scratch) if self._scratch is not None else []

    def clear(self) -> None:
        self._total.zero_()

    def add(self, tensors: Sequence[torch.Tensor | None], weight: float, grid: Grid) -> None:
        """Add weight * tensors (float32, shapes of the layout; None contributes nothing).

        A tensor whose grid is not set yet is left out: this attempt only measures it, and the step will be repeated.
        """
        if self._scratch is None:
            self._add_fast(tensors, weight)
            return
        lsb = [None if exponent is None else 2.0**exponent for exponent in grid.exponents]
        present = [(i, t, lsb[i]) for i, t in enumerate(tensors) if t is not None and t.numel()]
        gridded = [(i, t, unit) for i, t, unit in present if unit is not None]
        if not gridded:
            return
        rounded = [self._rounded[i] for i, _, _ in gridded]
        anchors = [1.5 * 2.0**52 * unit for _, _, unit in gridded]
        torch._foreach_copy_(rounded, [tensor for _, tensor, _ in gridded])
        if weight != 1.0:
            torch._foreach_mul_(rounded, weight)
        torch._foreach_add_(rounded, anchors)
        torch._foreach_sub_(rounded, anchors)
        torch._foreach_add_([self._views[i] for i, _, _ in gridded], rounded)

    def _add_fast(self, tensors: Sequence[torch.Tensor | None], weight: float) -> None:
        present = [(i, tensor) for i, tensor in enumerate(tensors) if tensor is not None and tensor.numel()]
        if present:
            torch._foreach_add_([self._views[i] for i, _ in present], [tensor for _, tensor in present], alpha=weight)


def finish(total: torch.Tensor, divisor: float, result: torch.Tensor, first_block: int) -> int:
    """result (float32) = total / divisor, cast once; returns the fingerprint of the result.

    Both are chunks of the flat buffer, whole blocks, starting at block `first_block` of the layout.
    """
    fingerprint = 0
    for start in range(0, total.numel(), _STRIDE):
        part = result[start : start + _STRIDE]
        part.copy_(total[start : start + _STRIDE] / divisor)
        fingerprint += fingerprint_of(part, first_block + start // BLOCK)
    return wrap(fingerprint)


def fingerprint_of(values: torch.Tensor, first_block: int) -> int:
    """Fingerprint of float32 values that fill whole blocks: sums of the bits per block, weighted by the block's position,
    modulo 2**64 (rule A10). Fingerprints of disjoint chunks add up to the fingerprint of the whole."""
    sums = values.view(torch.int32).view(-1, BLOCK).sum(1, dtype=torch.int64)
    weights = torch.arange(first_block + 1, first_block + 1 + sums.numel(), dtype=torch.int64)
    return wrap(int((sums * weights).sum()))


def wrap(value: int) -> int:
    """The signed 64-bit integer that is congruent to `value` modulo 2**64."""
    return (value + 2**63) % 2**64 - 2**63
