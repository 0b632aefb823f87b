"""What decides the order of a stage's tasks: how many shards may be in flight in it, and when backwards may begin.

What it does not do: put tasks in order (`flow`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A member of a pipeline. stage: of `stages`, the first is 0; hosted: how many shards of each step it takes through its
    stage."""

    stage: int
    stages: int
    hosted: int


@dataclass(frozen=True, slots=True)
class Order:
    """in_flight: how many shards a member may have taken forward and not yet backward, which its memory has to hold; warmup:
    how many it takes forward before it takes the first one backward, at most all that it hosts. After them a backward that
    can start goes before a forward that can start at the same time."""

    in_flight: int
    warmup: int = 0


Decide = Callable[[Place], Order]
