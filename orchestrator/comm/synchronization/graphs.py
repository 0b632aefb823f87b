"""Graphs of gossip: with which other shards a shard mixes its model, and with which weights.

A graph is a function of the number of shards and a shard that gives its neighbours with their weights; what these leave of 1
is the shard's own. Weights are those of Metropolis and Hastings, 1 / (1 + the larger degree of the two), here the same for all
since all shards have the same degree. So the matrix is doubly stochastic, which keeps the mean of the models. It is also
symmetric: then two neighbours round opposite numbers, and the sum of all models in fixed point does not change by a bit.

Sources: Xiao and Boyd, "Fast linear iterations for distributed averaging" (2004), for weights and the spectral gap. Ying et
al., "Exponential graph is provably efficient for decentralized deep training" (NeurIPS 2021), for the exponential graph. It
is directed there; here each edge has both directions.

A graph does not depend on the hosts of the shards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

Weights = Mapping[int, Fraction]
Matrix = Sequence[Sequence[Fraction]]


def ring(shards: int, shard: int) -> Weights:
    """The shard before and the one after. The gap falls with the square of the number of shards."""
    return _uniform(shards, shard, (1, -1))


def exponential(shards: int, shard: int) -> Weights:
    """The shards at distances 1, 2, 4, ... on both sides. The gap falls with the logarithm of the number of shards."""
    powers = [2**power for power in range((shards - 1).bit_length())]
    return _uniform(shards, shard, [*powers, *(-power for power in powers)])


def complete(shards: int, shard: int) -> Weights:
    """All others: one round makes all models equal."""
    return _uniform(shards, shard, range(1, shards))


GRAPHS: dict[str, Callable[[int, int], Weights]] = {"ring": ring, "exponential": exponential, "complete": complete}


def matrix(graph: str, shards: int) -> list[list[Fraction]]:
    """Row s is what shard s mixes, its own weight on the diagonal."""
    rows = [dict(GRAPHS[graph](shards, shard)) for shard in range(shards)]
    for shard, row in enumerate(rows):
        row[shard] = 1 - sum(row.values(), Fraction())
    return [[row.get(other, Fraction()) for other in range(shards)] for row in rows]


def spectral_gap(weights: Matrix) -> float:
    """1 less the second largest absolute eigenvalue: by which part one round brings the models nearer to their mean at least;
    1 for a single shard. Raises ValueError for a matrix that is not symmetric and circulant, as those of all graphs here are.

    The eigenvalues of a circulant matrix are the Fourier transform of its first row; that of frequency 0 is the mean.
    """
    size, first = len(weights), weights[0]
    if any(row[other] != first[(other - shard) % size] for shard, row in enumerate(weights) for other in range(size)):
        raise ValueError("the weights are not those of a circulant matrix")
    if any(first[distance] != first[-distance] for distance in range(1, size)):
        raise ValueError("the weights are not symmetric")
    numbers = [float(weight) for weight in first]
    return 1.0 - max((abs(_eigenvalue(numbers, frequency)) for frequency in range(1, size)), default=0.0)


def _uniform(shards: int, shard: int, distances: Iterable[int]) -> Weights:
    others = sorted({(shard + distance) % shards for distance in distances} - {shard})
    return dict.fromkeys(others, Fraction(1, len(others) + 1))


def _eigenvalue(row: Sequence[float], frequency: int) -> float:
    turn = 2 * math.pi / len(row)
    return math.fsum(weight * math.cos(turn * (frequency * other % len(row))) for other, weight in enumerate(row))
