"""Profiles of data that are alike tell of no drift, of others which columns and labels drifted; with scipy's own figures."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from orchestrator.data import drift
from orchestrator.data.profile import profile
from orchestrator.data.sketch import POINTS

pytestmark = pytest.mark.slow


def table(seed: int, shift: float = 0.0, rows: int = 400) -> TensorDataset:
    """Three columns, of which the second is shifted, and labels that follow the first."""
    values = np.random.default_rng(seed).normal(size=(rows, 3))
    values[:, 1] += shift
    return TensorDataset(torch.from_numpy(values), torch.from_numpy((values[:, 0] > 0).astype(np.int64)))


@pytest.mark.long
def test_alike_is_alike_and_a_shift_is_found_in_its_column() -> None:
    here = profile(table(1))
    same = drift.compare(here, profile(table(2)))
    assert same is not None
    assert [shift.column for shift in same.drifted] == []
    assert same.text.startswith("the data are distributed alike in 4 columns")
    moved = drift.compare(here, profile(table(2, shift=0.8)))
    assert moved is not None
    assert [shift.column for shift in moved.drifted] == ["0[1]"]
    assert "0[1]: median" in moved.text
    json.dumps(moved.as_dict(), allow_nan=False)


def test_equal_data_have_no_distance_at_all() -> None:
    found = drift.compare(profile(table(1)), profile(table(1)))
    assert found is not None
    assert {(shift.psi, shift.statistic) for shift in found.shifts} == {(0.0, 0.0)}


def test_the_distance_of_kolmogorov_and_smirnov_is_scipys() -> None:
    from scipy.stats import ks_2samp  # two seconds of a core, which only this test needs

    a, b = (np.random.default_rng(seed).normal(loc, 1.0, 500) for seed, loc in ((1, 0.0), (2, 0.3)))
    found = drift.compare(profile(list(a)), profile(list(b)))
    assert found is not None
    expected = ks_2samp(a, b)
    assert found.shifts[0].statistic == pytest.approx(expected.statistic, abs=2 / POINTS)
    few = [float(value) for value in np.round(a[:100])], [float(value) for value in np.round(b[:80])]
    exact = drift.compare(profile(few[0]), profile(few[1]))
    assert exact is not None
    assert exact.shifts[0].statistic == pytest.approx(ks_2samp(*few).statistic, abs=1e-12)


def test_the_stability_index_is_the_one_of_its_definition() -> None:
    """Tenths of a have a tenth each; b has two thirds of its values below a's median."""
    a = [float(value) for value in range(100)]
    b = [float(value) for value in [*range(50), *range(50), *range(50, 100)]]
    found = drift.compare(profile(a), profile(b))
    assert found is not None
    low, high = (2 / 15 - 0.1) * np.log((2 / 15) / 0.1), (1 / 15 - 0.1) * np.log((1 / 15) / 0.1)
    assert found.shifts[0].psi == pytest.approx(5 * low + 5 * high, rel=1e-6)


def test_data_of_other_columns_alone_have_no_picture() -> None:
    found = drift.compare(profile([{"a": 1.0}, {"a": 2.0}]), profile([{"b": 1.0}, {"b": 2.0}]))
    assert found is not None
    assert (found.is_any, found.has_picture) == (True, False)
    shared = drift.compare(profile([{"a": 1.0}, {"a": 2.0}]), profile([{"a": 1.0, "b": 1.0}, {"a": 2.0, "b": 2.0}]))
    assert shared is not None
    assert (shared.is_any, shared.has_picture) == (True, True)


def test_labels_are_compared_by_their_shares() -> None:
    features = torch.zeros(200, 2)
    even = TensorDataset(features, torch.arange(200) % 2)
    most = TensorDataset(features, (torch.arange(200) % 10 == 0).long())
    found = drift.compare(profile(even), profile(most))
    assert found is not None
    assert [shift.column for shift in found.drifted] == [drift.LABELS]
    assert "50.0% -> 90.0%" in found.text


def test_channels_of_images_drift_by_themselves() -> None:
    def images(blue: float) -> Any:
        pixels = torch.rand(80, 3, 8, 8, generator=torch.Generator().manual_seed(3))
        pixels[:, 2] *= blue
        return list(pixels)

    found = drift.compare(profile(images(1.0)), profile(images(0.5)))
    assert found is not None
    assert [shift.column for shift in found.drifted] == ["item[2]"]


def test_columns_come_and_go() -> None:
    found = drift.compare(profile([{"a": 1.0, "b": 2.0}]), profile([{"a": 1.0, "c": 2.0}]))
    assert found is not None
    assert (found.only_a, found.only_b, found.is_any) == (("b",), ("c",), True)


def test_of_many_columns_a_few_are_told() -> None:
    before, after = ({f"{name}{number}": 1.0 for number in range(40)} for name in "ab")
    found = drift.compare(profile([{"same": 1.0, **before}]), profile([{"same": 1.0, **after}]))
    assert found is not None
    assert found.text.splitlines()[6:8] == ["  a13 is gone", "  and 34 more are gone"]
    assert len(found.text.splitlines()) == 15


def test_an_old_profile_tells_nothing() -> None:
    assert drift.compare({"length": 3}, profile([1.0])) is None


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=300))
def test_a_sketch_keeps_the_shares_of_its_values(values: list[float]) -> None:
    sketch = profile(values)["columns"]["item"]
    assert sum(sketch["counts"]) == len(values)
    assert len(sketch["values"]) <= POINTS
    rounded = np.sort([float(f"{value:.6g}") for value in values])
    for point in rounded[:: max(1, len(rounded) // 10)]:
        expected = np.searchsorted(rounded, point, side="right") / len(rounded)
        assert abs(drift.share_up_to(sketch, np.array([point]))[0] - expected) <= 1 / POINTS + 1 / len(values)
