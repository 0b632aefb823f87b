"""Flipped bits in a worker: the same bit of every gradient from a step on, or one bit of its parameters once.

The first one stands for a machine that goes on computing wrongly. The second strikes between two steps: after the optimizer has
written the parameters, and before they are watched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

GRADIENTS: Final = "flipped gradients"
PARAMETER: Final = "flipped parameter"
BITS: Final = 32  # of an element


def in_copies(tensors: Sequence[torch.Tensor | None], place: float, bit: int) -> list[torch.Tensor | None]:
    """These tensors with one bit flipped, in a copy of the one that has it: what others keep of them stays as it is."""
    found = list(tensors)
    nth, element = _element([0 if tensor is None else tensor.numel() for tensor in tensors], place)
    struck = found[nth]
    assert struck is not None
    found[nth] = struck.clone(memory_format=torch.contiguous_format)
    flip(found[nth], element, bit)
    return found


def in_place(tensors: Sequence[torch.Tensor], place: float, bit: int) -> None:
    """One bit flipped where the tensors lie."""
    nth, element = _element([tensor.numel() for tensor in tensors], place)
    flip(tensors[nth].detach(), element, bit)


def flip(tensor: Any, element: int, bit: int) -> None:
    """tensor: of 32-bit elements, without gaps. No version is raised, as none is by a flipped bit."""
    tensor.data.view(-1).view(torch.uint8)[4 * element + bit // 8] ^= 1 << bit % 8


def _element(sizes: Sequence[int], place: float) -> tuple[int, int]:
    """The tensor and the element at this part of the way through all elements. place: from 0 to less than 1."""
    left = int(place * sum(sizes))
    for nth, size in enumerate(sizes):
        if left < size:
            return nth, left
        left -= size
    raise AssertionError("a place is less than 1")
