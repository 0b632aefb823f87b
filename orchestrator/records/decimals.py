"""Numbers as people read them. Pure."""

from __future__ import annotations

import math
import struct
from typing import Final

_LARGEST_FLOAT32: Final = (2 - 2**-23) * 2.0**127


def digits(value: float) -> str:
    """The shortest decimal number that stands for the value: of one that float32 holds, as losses and metrics are, among those
    of float32: 0.98 for 0.9800000190734863. Otherwise Python's own."""
    if not math.isfinite(value) or abs(value) > _LARGEST_FLOAT32 or _float32(value) != value:
        return repr(value)
    text = next(text for count in range(1, 10) if _float32(float(text := f"{value:.{count}g}")) == value)
    return repr(float(text))


def _float32(value: float) -> float:
    found: float = struct.unpack("f", struct.pack("f", value))[0]
    return found
