"""A rule between the values of several keys, and a sentence that more than one needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """What values of several keys must be together. `broken` gets them in this order; the first is the one to blame."""

    keys: tuple[str, ...]
    broken: Callable[..., str | None]


def two_lengths(section: str | None) -> str:
    return f"{section}.steps and {section}.epochs: only one can be set"
