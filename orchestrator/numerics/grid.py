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
    if magnitude >= INFINITE:
        raise ValueError(f"a magnitude of {magnitude:#x} is not finite")
    if magnitude <= 0:
        return None
    biased = magnitude >> 52
    exponent = biased - 1022 if biased else magnitude.bit_length() - 1074  # as math.frexp says
    return exponent + max(2, (shards - 1).bit_length()) - 53


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
        return [i for i, magnitude in enumerate(magnitudes) if not self._fits(self.exponents[i], magnitude)]

    def refit(self, magnitudes: list[int]) -> Grid:
        """The grid for the next attempt of the same step."""
        return self._with({i: self._fresh(magnitudes[i]) for i in self.misfits(magnitudes)})

    def committed(self, magnitudes: list[int]) -> Grid:
        """The grid for the next step, once a step with these magnitudes is committed."""
        return self._with({i: self._settled(i, magnitude) for i, magnitude in enumerate(magnitudes)})

    def _fits(self, exponent: int | None, magnitude: int) -> bool:
        needed = needed_exponent(magnitude, self.shards)
        return needed is None or (exponent is not None and needed <= exponent <= needed + SLACK)

    def _fresh(self, magnitude: int) -> int | None:
        needed = needed_exponent(magnitude, self.shards)
        return None if needed is None else needed + HEADROOM

    def _settled(self, i: int, magnitude: int) -> int | None:
        exponent, fresh = self.exponents[i], self._fresh(magnitude)
        return exponent if exponent is None or fresh is None else max(fresh, exponent - 1)

    def _with(self, changes: dict[int, int | None]) -> Grid:
        return Grid(tuple(changes.get(i, exponent) for i, exponent in enumerate(self.exponents)), self.shards)
