"""Progress: the order that its functions define, which is all that the controller knows of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.progress import (
    Progress,
    advances_of,
    behind,
    just_committed,
    latest,
    passed,
    reached,
    steps_of,
)

lockstep = st.none() | st.builds(Progress, st.integers(0, 3), st.booleans())
# A rest completes any number of steps, but of two rests of one run the later one has as many at least.
AT_REST = (0, 0, 1, 3, 3)
free = st.none() | st.builds(
    lambda rests, evaluated: Progress(AT_REST[rests], evaluated, rests), st.integers(0, 4), st.booleans()
)
progresses = st.shared(st.booleans(), key="free").flatmap(lambda is_free: free if is_free else lockstep)


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


@given(free, free)
def test_where_replicas_run_free_a_rest_counts_though_it_completed_no_step(
    one: Progress | None, other: Progress | None
) -> None:
    if advances_of(one) > advances_of(other):
        assert passed(one, other)
        assert behind(other, one) == advances_of(one) - advances_of(other)
        assert steps_of(one) >= steps_of(other)
