"""How long each part of a benchmark may take, so that all of it ends in time. Pure.

A part may take its share, and what those before it have left of theirs; never more than is left of the whole. One that would
get too little of its share is skipped, and a shorter one after it may still fit.
"""

from __future__ import annotations

from typing import Final

_LEAST: Final = 0.6  # of its share: with less, a part would most likely be cut off


def granted(share_s: float, planned_s: float, elapsed_s: float, total_s: float) -> float | None:
    """Seconds for a part; None where it is to be skipped. planned_s: the shares of those before it; elapsed_s: since the
    beginning."""
    saved = max(0.0, planned_s - elapsed_s)
    seconds = min(total_s - elapsed_s, share_s + saved)
    return seconds if seconds >= _LEAST * share_s else None
