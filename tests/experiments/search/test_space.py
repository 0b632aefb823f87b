"""A space has the values that its file says, and no others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.experiments.search.space import Choice, Dimension, Range, Space, corners, problem_of


@st.composite
def dimensions(draw: st.DrawFn) -> Dimension:
    if draw(st.booleans()):
        values = draw(st.lists(st.sampled_from([1, 1.0, True, "1", None, 2, "ring"]), min_size=1, unique_by=repr))
        return Choice(tuple(values))
    whole, log = draw(st.booleans()), draw(st.booleans())
    low = draw(st.integers(1, 50))
    if log:
        high = low * draw(st.integers(1, 1000))
        return Range(low, high, log=True) if whole else Range(low / 7, high / 7, log=True)
    step, count = draw(st.integers(1, 9)), draw(st.integers(0, 20))
    if whole:
        return Range(low, low + step * count, step)
    return Range(low / 10, round(low / 10 + step * count / 10, 10), draw(st.sampled_from([None, 0.1])))


@given(dimensions(), st.floats(0, 1, exclude_max=True))
def test_every_share_of_a_dimension_is_one_of_its_values(dimension: Dimension, share: float) -> None:
    value = dimension.at(share)
    assert dimension.holds(value)
    values = dimension.values()
    assert values is None or any(type(value) is type(other) and value == other for other in values)


@given(dimensions())
def test_all_values_and_both_ends_are_in_it(dimension: Dimension) -> None:
    for value in [*(dimension.values() or []), *dimension.ends]:
        assert dimension.holds(value)


@given(dimensions(), st.floats(allow_nan=False, allow_infinity=False))
def test_snapping_is_into_the_range_and_keeps_what_is_there(dimension: Dimension, value: float) -> None:
    if isinstance(dimension, Range):
        snapped = dimension.snap(value)
        assert dimension.holds(snapped)
        assert dimension.snap(snapped) == snapped


def test_steps_are_those_of_decimal_arithmetic() -> None:
    assert Range(0.0, 0.5, 0.1).values() == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert Range(8, 32, 8).values() == [8, 16, 24, 32]
    assert Range(1, 3).values() == [1, 2, 3]
    assert Range(0.1, 1.0).values() is None


def test_of_a_range_with_more_values_than_memory_each_is_found() -> None:
    """Such as that of seeds: a point was drawn from a list of all."""
    seeds = Range(0, 2**32 - 1)
    assert (seeds.count, seeds.at(0.0), seeds.at(0.5), seeds.at(1 - 2**-53)) == (2**32, 0, 2**31, 2**32 - 1)
    assert Range(1, 10**30).at(1 - 2**-53) == 1 + (2**53 - 1) * 10**30 // 2**53
    assert Range(0, 10**12, 10**3).snap(123456789.0) == 123457000


def test_the_shares_of_a_range_are_even() -> None:
    assert [Range(1, 4).at(share / 4) for share in range(4)] == [1, 2, 3, 4]
    assert Range(1.0, 100.0, log=True).at(0.5) == pytest.approx(10)
    assert [Choice(("a", "b")).at(share) for share in (0.0, 0.49, 0.5, 0.99)] == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Range(2, 1), "low (2) is above high (1)"),
        (lambda: Range(1, 2, 1, log=True), "only one can be set"),
        (lambda: Range(0, 2, log=True), "log needs a low above 0"),
        (lambda: Range(0, 2, 0), "step must be greater than 0"),
        (lambda: Range(0.0, 0.5, 0.2), "do not reach 0.5"),
        (lambda: Range(-1e308, 1e308), "farther than floating-point numbers reach"),
        (lambda: Range(0.0, 1e7, 1e-3), "there are 10000000001 steps"),
        (lambda: Choice((1.0, float("nan"))), "nan is equal to nothing"),
        (lambda: Choice(()), "choices is empty"),
        (lambda: Choice((1, [2])), "not [2]"),
        (lambda: Choice((1, 1)), "stands twice"),
    ],
)
def test_what_is_no_dimension_says_why(make: object, problem: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=r".") as error:
        make()
    assert problem in str(error.value)


def test_corners_show_every_end_and_every_choice() -> None:
    space: Space = {"a": Range(1, 3), "b": Choice(("x", "y", "z"))}
    found = list(corners(space))
    assert [point["a"] for point in found] == [1, 3, 1, 1]
    assert {point["b"] for point in found} == {"x", "y", "z"}
    assert [problem_of(space, point) for point in found] == [None] * 4
    assert "which is not in" in str(problem_of(space, {"a": 1.0, "b": "x"}))
    assert "needs a value" in str(problem_of(space, {"a": 1}))
