"""Evaluation combines the values of its batches."""

from __future__ import annotations

import math

import pytest

from orchestrator.pipeline import REDUCED
from orchestrator.worker.between_steps.evaluation import means_of

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([1.0, 2.0], 1.75),
        ([INF, 2.0], INF),
        ([1.0, -INF], -INF),
        ([INF, INF], INF),
        ([INF, -INF], NAN),
        ([NAN, INF], NAN),
        ([1.0, NAN], NAN),
    ],
)
def test_an_infinite_metric_stays_infinite(values: list[float], mean: float) -> None:
    """The second batch has three times the rows of the first."""
    rows = [(0.5, 1.0, rows, value) for rows, value in zip((1.0, 3.0), values, strict=True)]
    found = means_of(["psnr"], rows)
    assert found["validation/loss"] == 0.5
    assert found["validation/psnr"] == pytest.approx(mean, nan_ok=True)


@pytest.mark.parametrize(
    ("how", "values", "found"),
    [
        ("", [1e307] * 100, 1e307),  # a perplexity of a network that diverges
        ("", [1.7e308, -1.7e308, 1.7e308, 1.7e308], 8.5e307),
        (f"{REDUCED}sum", [1e308] * 2, INF),
        (f"{REDUCED}sum", [-1e308] * 3, -INF),
        (f"{REDUCED}sum", [1e308, 1e308, -1e308], 1e308),
    ],
)
def test_values_whose_sum_is_no_number_have_a_mean(how: str, values: list[float], found: float) -> None:
    rows = [(0.5, 1.0, 13.0, value) for value in values]
    assert means_of([f"psnr{how}"], rows)["validation/psnr"] == found


def test_what_weighs_nothing_counts_for_nothing() -> None:
    assert means_of(["psnr"], [(0.5, 1.0, 0.0, INF), (0.5, 1.0, 2.0, 3.0)])["validation/psnr"] == 3.0
