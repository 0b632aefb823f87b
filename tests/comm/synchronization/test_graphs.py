"""Graphs of gossip keep the mean, reach everyone, and have the spectral gap that a general eigenvalue solver finds."""

from __future__ import annotations

import typing
from fractions import Fraction

import numpy as np
import pytest

from orchestrator.comm.synchronization import SYNCHRONY
from orchestrator.comm.synchronization.graphs import GRAPHS, matrix, spectral_gap

NUMBERS = [1, 2, 3, 4, 5, 7, 8, 16, 33]


def test_the_mode_offers_all() -> None:
    kind = typing.get_args(SYNCHRONY.options("gossip")["graph"].kind)[0]
    assert typing.get_args(kind) == tuple(GRAPHS)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("shards", NUMBERS)
def test_weights_are_doubly_stochastic_and_symmetric(graph: str, shards: int) -> None:
    weights = matrix(graph, shards)
    assert [sum(row) for row in weights] == [1] * shards
    assert [sum(column) for column in zip(*weights, strict=True)] == [1] * shards
    assert [list(column) for column in zip(*weights, strict=True)] == weights
    assert all(weight >= 0 for row in weights for weight in row)
    assert all(weights[shard][shard] > 0 for shard in range(shards))  # or a graph of two sides would swing for ever


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("shards", NUMBERS)
def test_every_shard_is_reached(graph: str, shards: int) -> None:
    reached, waiting = {0}, [0]
    while waiting:
        new = set(GRAPHS[graph](shards, waiting.pop())) - reached
        reached |= new
        waiting += sorted(new)
    assert reached == set(range(shards))


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("shards", NUMBERS)
def test_the_spectral_gap_is_that_of_the_eigenvalues(graph: str, shards: int) -> None:
    weights = matrix(graph, shards)
    values = np.sort(np.abs(np.linalg.eigvalsh(np.array(weights, dtype=float))))
    expected = 1 - values[-2] if shards > 1 else 1.0
    assert spectral_gap(weights) == pytest.approx(expected, abs=1e-12)
    assert spectral_gap(weights) > 0


def test_known_gaps() -> None:
    assert spectral_gap(matrix("complete", 8)) == pytest.approx(1)
    assert spectral_gap(matrix("ring", 4)) == pytest.approx(2 / 3)
    gaps = {graph: spectral_gap(matrix(graph, 64)) for graph in GRAPHS}
    assert gaps["ring"] < gaps["exponential"] < gaps["complete"]


def test_other_matrices_are_refused() -> None:
    half = Fraction(1, 2)
    with pytest.raises(ValueError, match="circulant"):
        spectral_gap([[1 - half, half, 0 * half], [half, half, 0 * half], [0 * half, 0 * half, 2 * half]])
    with pytest.raises(ValueError, match="symmetric"):
        spectral_gap([[half, half, 0 * half], [0 * half, half, half], [half, 0 * half, half]])
