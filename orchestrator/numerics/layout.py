"""The place of each tensor in one flat buffer, and the places at which the buffer may be cut.

Every exchanged tensor starts at a multiple of 64 bytes of float32, because the address of an operand can change the bits of a
product. The buffer is cut into chunks only between blocks of 4096 elements, the unit of the fingerprint, so that the owner of
a chunk can fingerprint it alone. Nothing here depends on the number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch

ALIGNMENT = 16  # elements; 64 bytes of float32
BLOCK = 4096  # elements
_WAITING_BYTES = 32 << 20  # float32 contributions that may wait: what a last-level cache holds


@dataclass(frozen=True)
class Slot:
    """One tensor's place: `name`, its shape and stride (in elements), the offset of its first element."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @cached_property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def shape_in_memory(self) -> tuple[int, ...]:
        """The axes from the widest stride to the narrowest: the elements, one after the other, in this shape."""
        axes = sorted(zip(self.stride, self.shape, strict=True), key=lambda axis: -axis[0])
        return tuple(size for _, size in axes)

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        """The tensor as a view of `flat`, which has the layout's size."""
        return flat.as_strided(self.shape, self.stride, flat.storage_offset() + self.offset)


class Run(NamedTuple):
    """Whole blocks of a layout that lie one behind the other in a larger one, too: elements [start, end) of the first."""

    start: int
    end: int
    first_block: int  # in the larger layout


@dataclass(frozen=True)
class Layout:
    """The slots in order, and the size of the flat buffer in elements: a whole number of blocks."""

    slots: tuple[Slot, ...]
    size: int

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, torch.Tensor]]) -> Layout:
        slots: list[Slot] = []
        end = 0
        for name, tensor in tensors:
            slots.append(Slot(name, tuple(tensor.shape), _dense_stride(tensor), end))
            end += -(-tensor.numel() // ALIGNMENT) * ALIGNMENT
        return cls(tuple(slots), -(-end // BLOCK) * BLOCK)

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        return [slot.view(flat) for slot in self.slots]

    def borders(self, chunks: int) -> tuple[int, ...]:
        """chunks + 1 element positions: chunk c is [borders[c], borders[c + 1]), of nearly equal size, possibly empty."""
        blocks = self.size // BLOCK
        return tuple(blocks * chunk // chunks * BLOCK for chunk in range(chunks + 1))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, layout: dict[str, Any]) -> Layout:
        slots = (Slot(s["name"], tuple(s["shape"]), tuple(s["stride"]), s["offset"]) for s in layout["slots"])
        return cls(tuple(slots), layout["size"])


def most_waiting(size: int) -> int:
    """How many contributions of so many elements may wait until they are added up together."""
    return max(1, _WAITING_BYTES // (4 * max(1, size)))


def _dense_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """The tensor's own stride where it fills its memory without gaps (channels-last weights do), else the plain one."""
    if torch.ops.aten.is_non_overlapping_and_dense(tensor):
        return tuple(tensor.stride())
    return tuple(torch.empty(tensor.shape, device="meta").stride())
