"""Sums of few levels: they fit their integers at the worst, are free of grouping, and lose only what is kept."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.numerics.exact import FEW_LEVELS, weighted
from orchestrator.numerics.grid import ABSENT, INFINITE, magnitude_bits, magnitude_of
from orchestrator.numerics.levels import (
    Rounding,
    add_levels,
    largest,
    largest_by_operations,
    levels_of,
    mean_of_levels,
    mean_of_levels_by_operations,
    quantize_by_operations,
    spacing_of,
)
from orchestrator.optim.compressions.quantize import BITS, most_shards

HERE = torch.empty(0)  # in host memory
INFINITE_BITS = 0x7F800000  # of a float32
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
WEIGHTS = st.floats(min_value=1e-100, max_value=1e100)


@given(bits=st.sampled_from(BITS), data=st.data())
def test_partial_sums_fit_at_the_worst(bits: int, data: st.DataObject) -> None:
    """All shards as far out as they may be, on one side."""
    shards = data.draw(st.integers(1, most_shards(bits)))
    assert levels_of(bits, shards) >= 7
    value, weight = data.draw(FLOATS), data.draw(WEIGHTS)
    spacing = spacing_of(abs(value * weight), levels_of(bits, shards))
    total = torch.zeros(1, dtype=FEW_LEVELS[bits].dtype)
    for number in range(shards):
        add_levels(torch.tensor([value]), weight, spacing, levels_of(bits, shards), total, keeps=False)
        assert total.item() == math.copysign((number + 1) * levels_of(bits, shards), value) * (value != 0)


@example(bits=8, rows=[([0.0, 3.093e38, 0.0, 0.0, 0.0], 1.0), ([0.0, 3.3893e38, 0.0, 0.0, 0.0], 23.0)])
@given(
    bits=st.sampled_from(BITS),
    rows=st.lists(st.tuples(st.lists(FLOATS, min_size=5, max_size=5), st.floats(0.5, 64)), min_size=1, max_size=6),
)
def test_the_mean_and_what_is_kept_are_the_whole(bits: int, rows: list[tuple[list[float], float]]) -> None:
    """No element is further off than half a spacing, and all of what it is off is kept."""
    levels = levels_of(bits, len(rows))
    spacing = spacing_of(max(abs(value) * weight for values, weight in rows for value in values), levels)
    total, kept = torch.zeros(5, dtype=FEW_LEVELS[bits].dtype), []
    for values, weight in rows:
        row = torch.tensor(values)
        add_levels(row, weight, spacing, levels, total, keeps=True)
        kept.append(row.double())
        # Half a level, and the rounding of what is kept to float32.
        assert (row.double().abs() * weight <= spacing * (0.5 + 2**-20) + 1e-38).all()
    mean, whole = torch.empty(5), math.fsum(weight for _, weight in rows)
    mean_of_levels(total, spacing, whole, mean)
    for i in range(5):
        if abs(total[i].item() * (spacing / whole)) > torch.finfo(torch.float32).max:
            assert math.isinf(mean[i].item())  # as of any sum that float32 does not hold
            continue
        given_ = math.fsum(values[i] * weight for values, weight in rows)
        left = math.fsum(float(row[i]) * weight for row, (_, weight) in zip(kept, rows, strict=True))
        assert mean[i].item() * whole + left == pytest.approx(given_, rel=1e-5, abs=spacing * 1e-4 + 1e-30)


def test_ties_go_to_the_even_level_and_minus_zero_is_zero() -> None:
    values = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -0.0, 0.49999997])
    total = torch.zeros(8, dtype=torch.int8)
    add_levels(values, 1.0, 1.0, 7, total, keeps=True)
    assert total.tolist() == [0, 2, 2, 0, -2, -2, 0, 0]
    assert values.tolist() == [0.5, -0.5, 0.5, -0.5, 0.5, -0.5, 0.0, 0.4999999701976776]


def test_where_all_is_zero_nothing_is_divided() -> None:
    values, total = torch.tensor([0.0, -0.0]), torch.zeros(2, dtype=torch.int8)
    add_levels(values, 3.0, spacing_of(0.0, 15), 15, total, keeps=True)
    mean = torch.full((2,), 9.0)
    mean_of_levels(total, 0.0, 3.0, mean)
    assert values.tolist() == total.tolist() == mean.tolist() == [0, 0]


def test_without_feedback_the_gradient_stays_as_it_is() -> None:
    values = torch.tensor([0.3, -0.7])
    add_levels(values, 1.0, 0.1, 15, torch.zeros(2, dtype=torch.int8), keeps=False)
    assert torch.equal(values, torch.tensor([0.3, -0.7]))


@given(st.lists(st.floats(width=32), min_size=1, max_size=9), WEIGHTS)
def test_magnitudes_are_those_of_the_products(values: list[float], weight: float) -> None:
    (found,) = weighted(largest([torch.tensor(values)], HERE).numpy(), numpy.array([weight]))
    if all(math.isfinite(value) for value in values):
        assert magnitude_of(int(found)) == max(abs(value) * weight for value in values)
    else:
        assert found >= INFINITE


def test_what_is_not_there_has_no_magnitude() -> None:
    assert weighted(largest([None, torch.zeros(3)], HERE).numpy(), numpy.array([2.0])).tolist() == [ABSENT, 0]


@given(
    bits=st.sampled_from(BITS),
    values=st.lists(FLOATS, min_size=1, max_size=9),
    weight=st.floats(0.01, 64),
    shards=st.integers(1, 8),
    keeps=st.booleans(),
)
def test_operations_of_torch_round_as_the_loops_do(
    bits: int, values: list[float], weight: float, shards: int, keeps: bool
) -> None:
    levels = levels_of(bits, shards)
    spacing = spacing_of(max(map(abs, values)) * weight, levels)
    if not spacing or not math.isfinite(weight / spacing):
        return
    rows = [torch.tensor(values) for _ in range(2)]
    totals = [torch.full((len(values),), 3, dtype=FEW_LEVELS[bits].dtype) for _ in range(2)]
    means = [torch.empty(len(values)) for _ in range(2)]
    add_levels(rows[0], weight, spacing, levels, totals[0], keeps=keeps)
    add_apart = Rounding(rows[1], weight / spacing, spacing / weight, totals[1])
    quantize_by_operations([add_apart], float(levels), keeps=keeps)
    mean_of_levels(totals[0], spacing, 7.0, means[0])
    mean_of_levels_by_operations(totals[1], spacing / 7.0, means[1])
    for loops, operations in (rows, totals, means):
        assert torch.equal(loops.view(torch.uint8), operations.view(torch.uint8))


@given(st.lists(st.floats(width=32), max_size=9))
def test_operations_of_torch_find_the_largest_that_the_loops_find(values: list[float]) -> None:
    tensors = [torch.tensor(values, dtype=torch.float32), None, torch.tensor([-2.0, 1.0])]
    loops, operations = largest(tensors, HERE), largest_by_operations(tensors, HERE)
    if any(map(math.isnan, values)):
        assert min(loops[0], operations[0]) > INFINITE_BITS
        loops, operations = loops[1:], operations[1:]
    assert torch.equal(loops, operations)


@given(FLOATS)
def test_bits_of_a_magnitude_tell_it(value: float) -> None:
    assert magnitude_of(magnitude_bits(value)) == abs(value)
    assert numpy.float64(abs(value)).view(numpy.int64) == magnitude_bits(value)
