"""Evaluation combines the values of its batches."""

from __future__ import annotations

import math

import pytest

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


def test_what_weighs_nothing_counts_for_nothing() -> None:
    assert means_of(["psnr"], [(0.5, 1.0, 0.0, INF), (0.5, 1.0, 2.0, 3.0)])["validation/psnr"] == 3.0
