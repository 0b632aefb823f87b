"""The grid's rules A2 and A3, on magnitudes alone."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.numerics.grid import (
    ABSENT,
    HEADROOM,
    INFINITE,
    SLACK,
    Grid,
    magnitude_bits,
    needed_exponent,
)

finite = st.floats(min_value=0, allow_nan=False, allow_infinity=False, exclude_min=True)
magnitudes = st.one_of(st.just(ABSENT), st.just(0), finite.map(magnitude_bits))
shard_counts = st.one_of(st.integers(1, 70), st.sampled_from([2**k + d for k in range(2, 21) for d in (-1, 0, 1)]))


def _value(magnitude: int) -> float:
    value: float = struct.unpack(">d", magnitude.to_bytes(8, "big"))[0]
    return value


@given(finite, shard_counts)
@example(1.9, 1)
@example(1.9, 2)
@example(1.0, 4)
@example(1.9, 5)
def test_what_is_needed_is_what_exactness_takes(value: float, shards: int) -> None:
    """|x| <= 2**51 lsb, and all shards together <= 2**53 lsb, also when each was rounded up; half the lsb would not do."""
    needed = needed_exponent(magnitude_bits(value), shards)
    assert needed is not None
    for exponent in (needed, needed + SLACK):
        lsb = Fraction(2) ** exponent
        assert Fraction(value) <= 2**51 * lsb
        assert shards * math.ceil(Fraction(value) / lsb) <= 2**53
    finer = Fraction(2) ** (needed - 1)
    worst = Fraction(2) ** math.frexp(value)[1]  # magnitudes of one binade are treated alike
    growth = 2 ** math.ceil(math.log2(shards))
    assert worst > 2**51 * finer or growth * worst > 2**53 * finer


@given(finite, finite, shard_counts)
def test_a_larger_magnitude_never_needs_a_finer_grid(one: float, other: float, shards: int) -> None:
    low, high = sorted([one, other])
    needed = [needed_exponent(magnitude_bits(value), shards) for value in (low, high)]
    assert needed[0] is not None
    assert needed[1] is not None
    assert needed[0] <= needed[1]


def test_nothing_needs_no_grid() -> None:
    assert needed_exponent(ABSENT, 8) is None
    assert needed_exponent(0, 8) is None
    assert not Grid.unset(2, 8).misfits([ABSENT, 0])


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -math.nan])
def test_what_is_not_finite_has_no_grid(value: float) -> None:
    assert magnitude_bits(value) >= INFINITE
    with pytest.raises(ValueError, match="not finite"):
        needed_exponent(magnitude_bits(value), 8)


@given(st.floats(), st.floats())
def test_magnitudes_order_as_absolute_values_with_nan_on_top(one: float, other: float) -> None:
    def key(value: float) -> tuple[bool, float]:
        return (True, 0.0) if math.isnan(value) else (False, abs(value))

    if not (math.isnan(one) and math.isnan(other)):
        assert (magnitude_bits(one) < magnitude_bits(other)) == (key(one) < key(other))
    assert (magnitude_bits(one) < INFINITE) == math.isfinite(one)
    assert magnitude_bits(one) == magnitude_bits(-one)
    assert magnitude_bits(one) > ABSENT


@given(st.lists(magnitudes, min_size=1, max_size=5), shard_counts, st.data())
def test_a_refitted_grid_fits_and_leaves_the_others_alone(found: list[int], shards: int, data: st.DataObject) -> None:
    exponents = st.one_of(st.none(), st.integers(-1200, 1100))
    grid = Grid(tuple(data.draw(exponents) for _ in found), shards)
    misfits = grid.misfits(found)
    refitted = grid.refit(found)
    assert refitted.misfits(found) == []
    assert refitted.shards == shards
    for i, (before, after) in enumerate(zip(grid.exponents, refitted.exponents, strict=True)):
        needed = needed_exponent(found[i], shards)
        assert after == before if i not in misfits or needed is None else after == needed + HEADROOM


# Mostly small moves, as gradients make them; sometimes a leap, sometimes nothing.
moves = st.one_of(st.integers(-3, 3), st.integers(-30, 30), st.integers(-900, 900), st.none())


@st.composite
def histories(draw: st.DrawFn) -> list[int]:
    height, found = 0, []
    for move in draw(st.lists(moves, min_size=1, max_size=40)):
        height = max(-1000, min(1000, height + (move or 0)))
        value = magnitude_bits(math.ldexp(draw(st.floats(1, 2, exclude_max=True)), height))
        found.append(draw(st.sampled_from([ABSENT, 0])) if move is None else value)
    return found


@given(histories(), shard_counts)
def test_a_history_of_steps(history: list[int], shards: int) -> None:
    """After each commit the grid still fits the step just done, which a member that lags behind may meet again. It stays
    within [needed + HEADROOM, needed + SLACK], and moves down by at most one at a commit. A tensor that is absent leaves
    it."""
    grid = Grid.unset(1, shards)
    for magnitude in history:
        if grid.misfits([magnitude]):
            grid = grid.refit([magnitude])
        before = grid
        grid = grid.committed([magnitude])
        assert grid.misfits([magnitude]) == []
        needed, exponent = needed_exponent(magnitude, shards), grid.exponents[0]
        if needed is None:
            assert grid == before
            continue
        assert exponent is not None
        assert before.exponents[0] is not None
        assert needed + HEADROOM <= exponent <= needed + SLACK
        assert exponent >= before.exponents[0] - 1


def test_growth_within_the_headroom_and_decay_within_the_slack_repeat_no_step() -> None:
    grid = Grid.unset(1, 8).refit([magnitude_bits(1.0)]).committed([magnitude_bits(1.0)])
    assert not grid.misfits([magnitude_bits(2.0**HEADROOM)])
    assert grid.misfits([magnitude_bits(2.0 ** (HEADROOM + 1))])
    assert not grid.misfits([magnitude_bits(2.0 ** (HEADROOM - SLACK))])
    assert grid.misfits([magnitude_bits(2.0 ** (HEADROOM - SLACK - 1))])


def test_a_grid_follows_a_shrinking_gradient_one_bit_a_step() -> None:
    grid = Grid.unset(1, 8).refit([magnitude_bits(1.0)])
    first = grid.exponents[0]
    assert first is not None
    for step in range(20):
        grid = grid.committed([magnitude_bits(2.0**-10)])
        assert grid.exponents == (first - min(step + 1, 10),)


def test_a_gradient_that_shrinks_by_half_a_step_never_repeats_one() -> None:
    grid = Grid.unset(1, 8).refit([magnitude_bits(1.0)])
    for step in range(200):
        assert not grid.misfits([magnitude_bits(2.0**-step)])
        grid = grid.committed([magnitude_bits(2.0**-step)])


def test_a_gradient_that_comes_and_goes_never_repeats_a_step() -> None:
    """Layer drop and experts: absent or zero in most steps."""
    grid = Grid.unset(1, 8).refit([magnitude_bits(1.0)])
    for step in range(100):
        magnitude = [ABSENT, 0, magnitude_bits(1.0 + step % 3)][step % 3]
        assert not grid.misfits([magnitude])
        grid = grid.committed([magnitude])


@given(st.lists(st.lists(magnitudes, min_size=3, max_size=3), min_size=1, max_size=8), shard_counts)
def test_the_maximum_over_shards_may_be_taken_in_parts(per_shard: list[list[int]], shards: int) -> None:
    """The maxima that workers found for their shards, combined, are what one worker finds for all."""
    whole = [max(column) for column in zip(*per_shard, strict=True)]
    half = len(per_shard) // 2
    parts = [
        [max(column) for column in zip(*part, strict=True)] for part in (per_shard[:half], per_shard[half:]) if part
    ]
    combined = [max(column) for column in zip(*parts, strict=True)]
    assert Grid.unset(3, shards).refit(combined) == Grid.unset(3, shards).refit(whole)
    for magnitude in whole:
        assert magnitude <= 0 or _value(magnitude) > 0
