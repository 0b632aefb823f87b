"""How many floating-point operations a card can do: what MFU is made of, with those that a sample takes (`flop_counting`).

Peaks are those of dense products in bfloat16 in NVIDIA's data sheets, whatever `run.precision` is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

PEAKS: Final = {  # FLOP/s, by what the name of a card holds; the first that fits
    r"\bH200\b": 989e12,
    r"\bH100 NVL\b": 835e12,
    r"\bH100 PCIe\b": 756e12,
    r"\bH100\b": 989e12,
    r"\bA100\b": 312e12,
    r"\bL4\b": 121e12,
    r"\bB200\b": 2250e12,
}


def peak_of(cards: Iterable[str]) -> float | None:
    """The peak of these cards together, by their names; None if one of them is not known, or is a part of a card."""
    peaks = [_peak(card) for card in cards]
    return sum(each or 0.0 for each in peaks) if peaks and all(peaks) else None


def _peak(card: str) -> float | None:
    if " MIG " in f" {card} ":
        return None
    return next((peak for pattern, peak in PEAKS.items() if re.search(pattern, card)), None)
