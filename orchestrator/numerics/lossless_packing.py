"""Elements of 8 bytes in fewer, without losing a bit: what sums need where they travel.

A contribution to an exact sum is a multiple of a power of two, and so is every sum of such. Within a block of 512 neighbours
they are integers of about five bytes, and the contribution of a single shard is a float32. `pack` writes each block in the
shortest of the forms that give the same bits back, and as it is where none does: infinities, NaN, -0.0 beside sums, wide
ranges. To decide that, it computes the elements back and compares, so nothing can be lost (`loops`, where the form is).

It does not compress: blocks that need eight bytes take eight, and one byte in 512 more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from orchestrator.numerics import layout
from orchestrator.numerics.compiled import inverts
from orchestrator.numerics.exact import LOOPS, start_of

DTYPES: Final = (torch.float64, torch.int64)
BLOCK: Final = 512  # elements, as in `loops`
HEAD_BYTES: Final = 8  # of a block

# Shared by all threads, since a loop holds the interpreter's lock, and nothing in it outlives a call.
_scratch: Final = torch.empty(layout.BLOCK + 1, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class PackedVector:
    """Elements in packed form: the bytes (uint8), and what and how many they are. All that takes them raises ValueError for
    bytes that `pack` has not written."""

    packed: torch.Tensor
    dtype: torch.dtype
    elements: int

    def unpacked(self, into: torch.Tensor | None = None) -> torch.Tensor:
        values = torch.empty(self.elements, dtype=self.dtype) if into is None else into
        assert (values.numel(), values.dtype) == (self.elements, self.dtype)
        integers = self.dtype == torch.int64
        self._check(LOOPS["unpack"](*self._arguments, start_of(values), self.elements, integers, _scratch.data_ptr()))
        return values

    def added(self, base: torch.Tensor, into: torch.Tensor) -> None:
        """into = base + the elements, all float64."""
        assert base.numel() == into.numel() == self.elements
        start, to = start_of(base, torch.float64), start_of(into, self.dtype)
        self._check(LOOPS["widen_add"](*self._arguments, start, to, self.elements, _scratch.data_ptr()))

    def finish(self, base: torch.Tensor, divisor: float, result: torch.Tensor, first_block: int) -> int:
        """`exact.finish` of base with the elements as what is added last."""
        assert base.numel() == result.numel() == self.elements
        read = torch.empty(1, dtype=torch.int64)
        found = LOOPS["widen_divide"](
            *self._arguments,
            start_of(base, self.dtype),
            self.elements,
            divisor,
            inverts(divisor),
            start_of(result, torch.float32),
            first_block,
            _scratch.data_ptr(),
            start_of(read),
        )
        self._check(int(read))
        return found

    def locate(self, places: torch.Tensor) -> None:
        """places (int64, `blocks_of` them) = where each block begins, in bytes: what then reads them needs to check nothing."""
        assert places.numel() == blocks_of(self.elements)
        integers = self.dtype == torch.int64
        self._check(LOOPS["locate"](*self._arguments, self.elements, integers, start_of(places, torch.int64)))

    @property
    def _arguments(self) -> tuple[int, int]:
        return start_of(self.packed, torch.uint8), self.packed.numel()

    def _check(self, read_bytes: int) -> None:
        if read_bytes != self.packed.numel():
            what = f"{self.elements} x {self.dtype}"
            raise ValueError(f"{self.packed.numel()} bytes that came are not {what} in narrow form")


def blocks_of(elements: int) -> int:
    return -(-elements // BLOCK)


def least_bytes(elements: int) -> int:
    """The least size of so many elements in packed form."""
    return HEAD_BYTES * blocks_of(elements)


def most_bytes(elements: int) -> int:
    return 8 * elements + least_bytes(elements)


def pack(values: torch.Tensor, into: torch.Tensor) -> int:
    """Write float64 or int64 values in packed form; returns the number of bytes. into: `most_bytes` of uint8, its start a
    multiple of 8."""
    assert into.numel() >= most_bytes(values.numel())
    assert values.dtype in DTYPES
    at = start_of(into, torch.uint8)
    return LOOPS["pack"](start_of(values), values.numel(), values.dtype == torch.int64, at, _scratch.data_ptr())
