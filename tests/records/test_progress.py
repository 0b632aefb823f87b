"""Progress: the order that its functions define, which is all that the controller knows of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.progress import (
    Progress,
    behind,
    just_committed,
    latest,
    parse,
    passed,
    plain,
    reached,
    steps_of,
)

progresses = st.none() | st.builds(Progress, st.integers(0, 3), st.booleans())


@given(progresses, progresses, progresses)
def test_to_have_reached_is_an_order_from_the_initial_state_up(
    one: Progress | None, other: Progress | None, third: Progress | None
) -> None:
    assert reached(one, one)
    assert reached(one, None)
    assert (one == other) == (reached(one, other) and reached(other, one))
    assert reached(one, third) or not (reached(one, other) and reached(other, third))
    assert passed(one, other) == (reached(one, other) and not reached(other, one))


@given(st.lists(progresses))
def test_the_latest_is_one_that_has_reached_all_others(given_ones: list[Progress | None]) -> None:
    found = latest(given_ones)
    assert found in [*given_ones, None]
    assert all(reached(found, one) for one in given_ones)
    assert all(behind(one, found) >= 0 for one in given_ones)


@given(st.integers(1, 3), progresses)
def test_who_has_committed_has_reached_the_least_progress_with_so_many_steps(
    steps: int, progress: Progress | None
) -> None:
    assert reached(progress, just_committed(steps)) == (steps_of(progress) >= steps)


@given(progresses)
def test_it_travels_as_plain_values(progress: Progress | None) -> None:
    assert parse(plain(progress)) == progress
    assert plain(Progress(4, evaluated=False)) == [4, 0]
