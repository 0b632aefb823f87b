"""Patience runs out after so many evaluations without improvement, and starts anew after each."""

from __future__ import annotations

import math
from functools import reduce
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config.plan import MonitoredMetric
from orchestrator.optim.patience import Patience

values = st.lists(st.floats(-10, 10), max_size=30)


def after(
    values: list[float], patience: int = 2, mode: Literal["min", "max"] = "min", min_change: float = 0.0
) -> Patience:
    return reduce(Patience.after, values, Patience(MonitoredMetric("m", patience, mode, min_change)))


def test_patience_runs_out() -> None:
    assert after([3, 2, 2.5, 2.5]).exhausted == 1
    assert after([3, 2, 2.5, 1.9, 2.0]).exhausted == 0
    assert after([3, 4, 4, 4, 4]).exhausted == 2
    assert after([1, 1, 1]).exhausted == 1
    assert after([3, 2.95, 2.93], min_change=0.1).exhausted == 1
    assert after([0.5, 0.6, 0.7], mode="max").exhausted == 0
    assert after([math.nan, math.nan]).exhausted == 1
    assert after([math.nan, 1.0, 0.5]).best == 0.5


@given(values, st.integers(1, 5))
def test_the_two_modes_mirror_each_other(numbers: list[float], patience: int) -> None:
    lower = after(numbers, patience, "min")
    higher = after([-number for number in numbers], patience, "max")
    assert (lower.exhausted, lower.waited) == (higher.exhausted, higher.waited)


@given(values, st.integers(1, 5))
def test_the_best_is_the_best(numbers: list[float], patience: int) -> None:
    state = after(numbers, patience)
    assert state.best == (min(numbers) if numbers else None)
    assert 0 <= state.waited < patience
