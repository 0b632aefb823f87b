"""Contributions of bounded norm as integers: clipped, then truncated toward zero on a quantization grid that never changes.

    lsb     = 2**(e - 40), where the clipping norm is below 2**e
    factor  = clipping norm / norm of all tensors together, or 1 where that is larger
    k       = trunc(x * factor / lsb)                  so |k * lsb| <= |x * factor|, element by element
    sum     = all k, and the noise as one more, in int64

Truncation makes no element longer, so the norm of what is released of a client is at most the clipping norm, exactly; rounding
to the nearest would exceed it. The factor allows for the error of the norm that it is computed from. The integers of one client
are at most 2**40, so 2**19 clients and noise of 1000 clipping norms stay below 2**61.

Source: clipping, McMahan et al., "Learning differentially private recurrent language models" (2018), section 2.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

import torch

from orchestrator.numerics import foreach
from orchestrator.numerics.exact import in_host_memory, in_order, there
from orchestrator.numerics.layout import Layout, Slot
from orchestrator.optim.privacy import noise
from orchestrator.optim.privacy.keys import Stream

BITS: Final = 40
_LOSS_BITS, _LOSS_LIMIT = 24, 2.0**16
_AT_ONCE: Final = 1 << 20  # elements, of which a copy in float64 stays in a processor's cache
_TOGETHER: Final = 1 << 22  # elements of small tensors that a device takes at once

Tensors = Sequence[torch.Tensor | None]


class QuantizationGrid:
    """Adds contributions of bounded norm as integers on a fixed grid. clipping_norm: of a contribution, over all its tensors.
    layout: of the tensors and of the sums."""

    def __init__(self, clipping_norm: float, layout: Layout) -> None:
        self.clipping_norm = clipping_norm
        self.lsb = 2.0 ** (math.frexp(clipping_norm)[1] - BITS)
        self._slots = layout.slots
        elements = sum(slot.elements for slot in layout.slots)
        self._margin = (elements + 8) * 2.0**-53

    def add(self, tensors: Tensors, total: torch.Tensor) -> bool:
        """total (int64) += the clipped tensors (float32, None for zeros). False, and nothing is added, where one is not
        finite."""
        ordered = [None if t is None else in_order(t, slot) for t, slot in zip(tensors, self._slots, strict=True)]
        flat = [None if t is None else t.as_strided((t.numel(),), (1,)) for t in ordered]
        present = [i for i, tensor in enumerate(flat) if tensor is not None]
        groups = [[i] for i in present] if in_host_memory(total) else self._together(present)
        squares = [square for group in groups for square in self._squares(group, flat)]
        norm = math.sqrt(math.fsum(torch.stack(squares).tolist() if squares else []))  # a device is asked once
        if not math.isfinite(norm):
            return False
        factor = 1.0
        if norm * (1 + self._margin) > self.clipping_norm:
            factor = self.clipping_norm / norm * (1 - self._margin)
        for group in groups:
            start, end = self._span(group)
            total[start:end].add_(self._widened(group, flat).mul_(factor / self.lsb).to(torch.int64))
        return True

    def _together(self, present: Sequence[int]) -> list[list[int]]:
        """The tensors in groups that follow one another: on a device each operation costs a launch."""
        groups: list[list[int]] = []
        for i in present:
            if not groups or self._span([groups[-1][0], i])[1] - self._span(groups[-1])[0] > _TOGETHER:
                groups.append([])
            groups[-1].append(i)
        return groups

    def _span(self, group: Sequence[int]) -> tuple[int, int]:
        last = self._slots[group[-1]]
        return self._slots[group[0]].offset, last.offset + last.elements

    def _widened(self, group: Sequence[int], flat: Tensors) -> torch.Tensor:
        """The tensors of a group in float64, each at its place in the span, with zeros between them."""
        found = [(self._slots[i], tensor) for i in group if (tensor := flat[i]) is not None]
        if len(found) == 1:
            return found[0][1].double()
        start, end = self._span(group)
        whole = found[0][1].new_zeros(end - start, dtype=torch.float64)
        foreach.copy([whole[s.offset - start :][: s.elements] for s, _ in found], [tensor for _, tensor in found])
        return whole

    def _squares(self, group: Sequence[int], flat: Tensors) -> list[torch.Tensor]:
        """The sum of the squares of each tensor of a group."""
        whole, (start, _) = self._widened(group, flat).square_(), self._span(group)
        return [whole[self._slots[i].offset - start :][: self._slots[i].elements].sum() for i in group]

    def add_noise(self, multiplier: float, stream: Stream, total: torch.Tensor) -> None:
        """total += normal numbers with a standard deviation of so many clipping norms, rounded."""
        deviation = multiplier * self.clipping_norm / self.lsb
        places = deque(self._place(slot, total) for slot in self._slots if slot.elements)
        for numbers in noise.normal(stream, sum(map(len, places)), deviation, total.device):
            left = there(numbers, total)
            while len(left):
                count = min(len(left), len(places[0]))
                places[0][:count].add_(left[:count])
                left, places[0] = left[count:], places[0][count:]
                if not len(places[0]):
                    places.popleft()

    def mean(self, total: torch.Tensor, expected: float, result: torch.Tensor) -> None:
        """result (float32) = total * lsb / expected. Both are in host memory, or on one device."""
        for part, mean in zip(torch.split(total, _AT_ONCE), torch.split(result, _AT_ONCE), strict=True):
            mean.copy_(part.double().mul_(self.lsb / expected))

    def _place(self, slot: Slot, total: torch.Tensor) -> torch.Tensor:
        return total[slot.offset : slot.offset + slot.elements]


def loss_on_grid(loss: float) -> int:
    """A loss as an integer; what is above 65,536 counts as that."""
    return round(max(-_LOSS_LIMIT, min(loss, _LOSS_LIMIT)) * 2.0**_LOSS_BITS)


def mean_loss(total: int, count: int) -> float:
    """The mean of so many losses on the quantization grid; zero if there are none."""
    return total / (count << _LOSS_BITS) if count else 0.0
