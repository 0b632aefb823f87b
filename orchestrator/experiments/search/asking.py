"""The questions to a search, and the trials that follow from what is known: pure, so that a sweep repeats.

Trials are asked for in batches of a fixed size, and a batch only when all results of those before it are known. Its randomness
is a function of the sweep's seed and the number of the batch, so neither the order in which trials end nor how many run side by
side can change what is asked next.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.experiments.search.space import Point, Space

Direction = Literal["minimize", "maximize"]


@dataclass(frozen=True)
class Trial:
    """A point that is tried. number: from 0 on, in the order in which they are asked for."""

    number: int
    point: Point


@dataclass(frozen=True)
class Result:
    """The outcome of a trial. value: of the objective, None where it failed; steps: of the run that gave the value; pruned:
    whether it was ended before its last rung."""

    trial: Trial
    value: float | None
    steps: int = 0
    pruned: bool = False


@dataclass(frozen=True)
class Ask:
    """The argument of a search."""

    space: Space  # keys with what they may be
    results: Sequence[Result]  # of all trials before, in their order
    first: int  # number of the first point that is wanted
    count: int  # number of the points that are wanted
    seed: int  # of the sweep
    size: int  # of a whole batch
    direction: Direction = "minimize"  # whether small values are good, or large ones

    @property
    def batch(self) -> int:
        """The number of this batch."""
        return self.first // self.size

    def share(self, number: int, key: str) -> float:
        """A random number from 0 to below 1 for a key of a trial: a function of the seed, the trial and the key."""
        return _hash(f"{self.seed}/{number}/{key}", 7) % (1 << 53) / (1 << 53)

    def batch_seed(self, batch: int | None = None) -> int:
        """32 random bits for a batch, this one if none is named: a function of the seed and its number."""
        return _hash(f"{self.seed}/batch/{self.batch if batch is None else batch}", 4)


OTHERWISE = "the sweep was made with other versions of its packages; install those, or launch a new one"
Searcher = Callable[..., Sequence[Point]]


@dataclass(frozen=True)
class Search:
    """Which search a sweep uses."""

    name: str  # of its entry in the table
    ask: Searcher  # function of its entry in the table, which gives points
    trials: int  # how many in all
    batch: int  # how many are asked for at once
    direction: Direction = "minimize"  # whether small values are good, or large ones
    options: Mapping[str, Any] = field(default_factory=dict)  # what the entry takes


def next_batch(space: Space, search: Search, seed: int, results: Sequence[Result]) -> list[Trial]:
    """The trials that follow on these results, which are those of whole batches in order; none at the end."""
    first = len(results)
    count = min(search.batch, search.trials - first)
    if count <= 0:
        return []
    ask = Ask(space, tuple(results), first, count, seed, search.batch, search.direction)
    points = search.ask(ask, **search.options)
    return [Trial(first + index, dict(point)) for index, point in enumerate(points)]


def best(results: Sequence[Result], direction: str) -> Result | None:
    """The best of those that reached their last rung; of equal ones the first."""
    found = [each for each in results if each.value is not None and not each.pruned]
    return min(found, key=lambda each: (rank(each.value, direction), each.trial.number), default=None)


def rank(value: float | None, direction: str) -> float:
    """A number that is small if the value is good; a failed trial comes last."""
    if value is None or not math.isfinite(value):
        return math.inf
    return value if direction == "minimize" else -value


def _hash(text: str, size: int) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=size).digest(), "big")
