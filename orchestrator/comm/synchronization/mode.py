"""A mode of synchronisation: when a shard may start its next micro-batch, and how replicas exchange updates in between.

A mode counts updates; it knows no workers, messages or tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class View:
    """The knowledge of a worker when it could start a micro-batch. clocks: per shard, how many of its updates are applied
    here; shard: whose micro-batch."""

    clocks: Sequence[int]
    shard: int


Waits = Callable[[View], str | None]


def never(view: View) -> None:
    """The rule of a mode in which no computation waits for another's."""


@dataclass(frozen=True)
class Mode:
    """When replicas go on without each other, and what they exchange."""

    # sprints: replicas run free between sync barriers, at which all become equal;
    # gossip: each shard has a model of its own and mixes it with its neighbours'
    execution: Literal["lockstep", "sprints", "gossip"]
    waits: Waits = never  # why this shard may not start yet; None when it may; pure
    staleness: int | None = None  # updates a shard that starts is ahead of the slowest one at most; None for no bound
    threshold: float = 0.0  # of the significance filter at clock 0, falling as 1/sqrt(clock + 1); 0: all is sent
    rest_every: int = 1  # steps between two sync barriers at most
    graph: str | None = None  # of gossip, a key of `graphs.GRAPHS`; None for other modes


def bounded(staleness: int) -> Waits:
    """The rule that a shard at clock c starts only if c - min(clocks) <= staleness.

    A worker has applied at most the updates that exist, so a view that is out of date only waits longer.
    """

    def waits(view: View) -> str | None:
        ahead = view.clocks[view.shard] - min(view.clocks)
        if ahead <= staleness:
            return None
        slowest = min(range(len(view.clocks)), key=view.clocks.__getitem__)
        return f"shard {view.shard} is {ahead} updates ahead of shard {slowest}; the bound is {staleness}"

    return waits
