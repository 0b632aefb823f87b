"""Several sources in one training set, in proportions that are exact: which source a row comes from, and which of its samples
it is, is a function of the row's position in its shard.

    pattern    so many rows in a row as make the weights whole numbers: 10 for 0.7 and 0.3. In each, every source has exactly
               its number of rows, in an order that is drawn anew for each pattern and shard
    draws      of a source by a shard are numbered through the run; which samples they are is `data/mixture.py`
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from orchestrator.data.sampling.orders import keys_of, permuted
from orchestrator.data.sampling.population import Whole

LONGEST = 10_000  # of a pattern: weights with four digits
_PATTERNS_KEPT = 64


def counts_of(weights: Mapping[str, float]) -> dict[str, int]:
    """How many rows of a pattern each source has. Raises ValueError for weights that make it longer than LONGEST, or are not
    numbers above 0."""
    if not all(
        isinstance(weight, int | float) and not isinstance(weight, bool) and 0 < weight < math.inf
        for weight in weights.values()
    ):
        raise ValueError("weights are numbers above 0")
    if not weights:
        return {}
    exact = {name: Fraction(str(weight)) for name, weight in weights.items()}
    whole = math.lcm(*(each.denominator for each in exact.values()))
    counts = {name: int(each * whole) for name, each in exact.items()}
    least = math.gcd(*counts.values())
    if sum(counts.values()) // least > LONGEST:
        raise ValueError(
            f"the weights are whole numbers only in {sum(counts.values()) // least} rows; {LONGEST} at most: round them"
        )
    return {name: count // least for name, count in counts.items()}


def are_weights(weights: Mapping[str, float]) -> bool:
    """Whether `counts_of` takes them, or there are none."""
    try:
        counts_of(weights)
    except ValueError:
        return False
    return True


class Piece(NamedTuple):
    """Draws [first, last) of a source by one shard, and at which rows of its micro-batch they stand."""

    source: int
    first: int
    last: int
    rows: Whole


@dataclass(frozen=True)
class Pattern:
    """The pattern in which sources take turns. counts: rows of each source in a pattern."""

    seed: int
    counts: tuple[int, ...]

    def pieces(self, shard: int, first: int, last: int) -> list[Piece]:
        """Rows [first, last) of all that this shard has in the run, by source."""
        import numpy

        length = sum(self.counts)
        numbers = range(first // length, -(-last // length))
        sources = numpy.concatenate(
            [_sources(self, shard, number) for number in numbers] or [numpy.zeros(0, numpy.int64)]
        )
        begins = first - numbers.start * length
        before, own = sources[:begins], sources[begins : begins + last - first]
        found = []
        for source, count in enumerate(self.counts):
            rows = numpy.flatnonzero(own == source)
            if len(rows):
                start = numbers.start * count + int((before == source).sum())
                found.append(Piece(source, start, start + len(rows), rows))
        return found


@functools.lru_cache(_PATTERNS_KEPT)
def _sources(pattern: Pattern, shard: int, number: int) -> Whole:
    """The source of each row of one pattern."""
    import numpy

    length = sum(pattern.counts)
    places = permuted(numpy.arange(length), length, keys_of(pattern.seed, "mixture", shard, number))
    found: Whole = numpy.searchsorted(numpy.cumsum(pattern.counts), places, "right")
    return found
