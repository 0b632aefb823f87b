"""The grid of each tensor: which power of two its contributions are rounded to (rules A2 and A3). Pure integers, no torch.

A sum is exact, and so free of order, if every contribution is a multiple of one power of two `lsb = 2**exponent`. It has to
be small enough to lose nothing that matters, and large enough for the total to fit 53 bits. The exponent is chosen per tensor
from the largest magnitude over *all shards*; since a maximum is associative, every member of a generation decides alike,
whatever the number of workers.

    needed = exponent_of(magnitude) + max(2, ceil(log2 shards)) - 53     the finest grid on which the total fits
    fits       needed <= exponent <= needed + SLACK
    otherwise  exponent = needed + HEADROOM, and the step is repeated
    committed  exponent = max(needed + HEADROOM, exponent - 1)           so it follows a shrinking gradient slowly

Source: pre-rounding, Demmel and Nguyen, "Fast Reproducible Floating-Point Summation" (2013), with the grid kept as state.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

ABSENT = -1  # magnitude of a tensor to which no shard contributes
HEADROOM = 6  # bits a magnitude may grow before a step has to be repeated
SLACK = 20  # bits a magnitude may shrink before the grid counts as too coarse
INFINITE = 0x7FF << 52  # the magnitude of infinity; those of NaN lie above it, those of all numbers below


def magnitude_bits(value: float) -> int:
    """The bits of |value| as a float64: an integer that orders as the magnitudes do, with NaN above everything."""
    return int.from_bytes(struct.pack(">d", abs(value)), "big") & 0x7FFF_FFFF_FFFF_FFFF


def magnitude_of(bits: int) -> float:
    """The value that `magnitude_bits` told of."""
    value: float = struct.unpack(">d", bits.to_bytes(8, "big"))[0]
    return value


def needed_exponent(magnitude: int, shards: int) -> int | None:
    """The finest exponent on which `shards` contributions of this magnitude add exactly; None when there is nothing to add."""
    return needed_exponents([magnitude], shards)[0]


def needed_exponents(magnitudes: Sequence[int], shards: int) -> list[int | None]:
    """As `needed_exponent`, of each tensor: a call for each would cost more than all else."""
    largest = max(magnitudes, default=ABSENT)
    if largest >= INFINITE:
        raise ValueError(f"a magnitude of {largest:#x} is not finite")
    more = max(2, (shards - 1).bit_length()) - 53
    # A biased exponent, or for a subnormal number what one would be, gives the exponent of math.frexp.
    return [
        None if magnitude <= 0 else (magnitude >> 52 or magnitude.bit_length() - 52) - 1022 + more
        for magnitude in magnitudes
    ]


@dataclass(frozen=True)
class Grid:
    """`exponents[i]` belongs to tensor i of the layout; None until the tensor has had a contribution."""

    exponents: tuple[int | None, ...]
    shards: int

    @classmethod
    def unset(cls, tensors: int, shards: int) -> Grid:
        return cls((None,) * tensors, shards)

    def misfits(self, magnitudes: list[int]) -> list[int]:
        """The tensors whose agreed magnitudes do not fit; empty when the step can go on."""
        pairs = zip(needed_exponents(magnitudes, self.shards), self.exponents, strict=True)
        return [
            i
            for i, (needed, exponent) in enumerate(pairs)
            if needed is not None and (exponent is None or not needed <= exponent <= needed + SLACK)
        ]

    def refit(self, magnitudes: list[int]) -> Grid:
        """The grid for the next attempt of the same step."""
        misfits, exponents = self.misfits(magnitudes), list(self.exponents)
        for i, needed in zip(misfits, needed_exponents([magnitudes[i] for i in misfits], self.shards), strict=True):
            exponents[i] = None if needed is None else needed + HEADROOM
        return Grid(tuple(exponents), self.shards)

    def committed(self, magnitudes: list[int]) -> Grid:
        """The grid for the next step, once a step with these magnitudes is committed."""
        pairs = zip(needed_exponents(magnitudes, self.shards), self.exponents, strict=True)
        settled = [
            exponent if needed is None or exponent is None else max(needed + HEADROOM, exponent - 1)
            for needed, exponent in pairs
        ]
        return Grid(tuple(settled), self.shards)
