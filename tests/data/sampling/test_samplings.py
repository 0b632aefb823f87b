"""Weights of samplings: fit, pure, and what they are for."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from orchestrator.data.sampling.samplings import SAMPLINGS, misfit
from tests.data.sampling.test_partitions import population

LABELS = [0] * 6 + [1] * 3 + [2]


def test_every_label_of_a_part_is_as_likely() -> None:
    given = population(LABELS, 2)
    for part in (numpy.arange(10), numpy.array([0, 1, 6]), numpy.array([9])):
        weights = SAMPLINGS["balanced"](given, part, by="label")
        assert weights is not None
        assert misfit(weights, len(part)) is None
        of = given.labels("label")[part]
        assert {round(float(weights[of == label].sum()), 9) for label in set(of.tolist())} == {1.0}


def test_weighted_asks_the_pipeline() -> None:
    weights = SAMPLINGS["weighted"](population(LABELS, 2), numpy.array([9, 0, 6]))
    assert weights is not None
    assert weights.tolist() == [2.0, 0.0, 1.0]


def test_uniform_has_no_weights() -> None:
    assert SAMPLINGS["uniform"](population(LABELS, 2), numpy.arange(3)) is None


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ([1.0, 2.0], "a list; expected an array of 2 weights in float64"),
        (numpy.ones(2, numpy.float32), r"a ndarray of shape (2,) and type float32; expected"),
        (numpy.ones(3), "a ndarray of shape (3,) and type float64; expected"),
        (numpy.array([1.0, -2.0]), "the weight -2.0; a weight is finite and at least 0"),
        (numpy.array([1.0, numpy.nan]), "the weight nan; a weight is finite and at least 0"),
        (numpy.array([1.0, numpy.inf]), "the weight inf; a weight is finite and at least 0"),
        (numpy.zeros(2), "2 weights of the sum 0.0, by which nothing can be drawn"),
        (numpy.full(2, 1.7e308), "2 weights of the sum inf, by which nothing can be drawn"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_weights_that_are_unfit_are_told(weights: Any, problem: str) -> None:
    found = misfit(weights, 2)
    assert found is not None
    assert found.startswith(problem)
