"""Which trials a sweep has depends on nothing but what it is and what its runs come to: pure, in milliseconds."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from orchestrator.experiments.search import SEARCHES
from orchestrator.experiments.search.asking import Ask, Result, Search, Trial, best, next_batch
from orchestrator.experiments.search.halving import Rung, prune
from orchestrator.experiments.search.laws import broken, problems
from orchestrator.experiments.search.outlook import Course, Ended, Outlook, TrialRung, look, verify
from orchestrator.experiments.search.space import Choice, Point, Range, Space
from tests.products import thinned
from tests.refusals import refused

pytestmark = pytest.mark.slow

SPACE: Space = {
    "optimizer.lr": Range(1e-4, 1e-1, log=True),
    "pipeline.args.hidden": Choice((32, 64, 128)),
    "data.batch_size": Range(8, 64, 8),
}
FINITE: Space = {key: dimension for key, dimension in SPACE.items() if key != "optimizer.lr"}


def search(name: str, trials: int = 24, batch: int = 4, **options: Any) -> Search:
    return Search(name, SEARCHES[name], trials, batch, options=SEARCHES.resolve(name, options))


def space_of(name: str) -> Space:
    return FINITE if name == "grid" else SPACE


def value_of(point: Point, steps: int) -> float | None:
    """Some trials fail."""
    if point["data.batch_size"] == 56:
        return None
    return float(
        abs(point.get("optimizer.lr", 0.01) - 0.01) * 100 + 1 / point["pipeline.args.hidden"] + 1 / (steps + 1)
    )


def ended(course: Course, place: TrialRung, point: Point) -> Ended:
    return Ended("run", value_of(point, course.steps_of(place[1])), "digest")


def complete(course: Course, slots: int, seed: int, known: Mapping[TrialRung, Ended] | None = None) -> Outlook:
    """Run a sweep with so many slots, in which due runs end in any order; from what is known already."""
    chance = random.Random(seed)
    done = dict(known or {})
    while True:
        outlook = look(course, done)
        if not outlook.due:
            return outlook
        points = {trial.number: trial.point for trial in outlook.trials}
        running = outlook.due[:slots]
        chance.shuffle(running)
        for place in running:
            done[place] = ended(course, place, points[place[0]])


@pytest.mark.parametrize("name", sorted(SEARCHES))
def test_every_search_keeps_to_the_laws(name: str) -> None:
    assert broken(space_of(name), search(name), 3) is None


@pytest.mark.parametrize("name", ["grid", "random"])
@given(
    slots=st.integers(1, 9), order=st.integers(0, 99), batch=st.integers(3, 9), cuts=st.sampled_from([(), (5,), (2, 6)])
)
def test_slots_and_order_change_nothing(name: str, slots: int, order: int, batch: int, cuts: tuple[int, ...]) -> None:
    course = Course(space_of(name), search(name, batch=batch), 7, [Rung(steps, 3) for steps in cuts], 20)
    assert complete(course, slots, order) == complete(course, 1, 0)


@pytest.mark.parametrize("name", thinned(["tpe", "nsga2"], 2))
@examples(max_examples=3, deadline=None)
@given(slots=st.integers(2, 9), order=st.integers(0, 99))
def test_slots_and_order_change_nothing_of_optunas(name: str, slots: int, order: int) -> None:
    course = Course(SPACE, search(name, 12, 4), 7, [Rung(5, 3)], 20)
    assert complete(course, slots, order) == complete(course, 1, 0)


@pytest.mark.parametrize("name", thinned(sorted(SEARCHES), 3))
def test_a_sweep_that_goes_on_from_any_moment_has_the_same_trials(name: str) -> None:
    course = Course(space_of(name), search(name, 12, 4), 7, [Rung(5, 3)], 20)
    whole = complete(course, 1, 0)
    points = {trial.number: trial.point for trial in whole.trials}
    places = [(trial.number, 0) for trial in whole.trials]
    places += [(number, 1) for cut in whole.cuts for number in cut.kept]
    for moment in (1, 5, 9, 13):
        known = {place: ended(course, place, points[place[0]]) for place in places[:moment]}
        assert complete(course, 3, moment, known) == whole


def test_what_is_told_of_batches_is_not_asked_again_and_can_be_verified() -> None:
    course = Course(SPACE, search("random", 8, 4), 1)
    outlook = look(course, {}, [[Trial(number, {"optimizer.lr": 0.5}) for number in range(4)]])
    assert [trial.point for trial in outlook.trials] == [{"optimizer.lr": 0.5}] * 4
    with refused("sweep.trials-differ"):
        verify(course, outlook)
    verify(course, complete(course, 2, 0))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: 1 / 0, "raised ZeroDivisionError"),
        (list, "gives 0 points where 1 are asked for"),
        (lambda: [{"data.batch_size": 12}], "gives data.batch_size the value 12"),
        (lambda: [7], "raised TypeError"),
    ],
)
def test_a_search_of_ones_own_that_fails_late_ends_the_sweep_and_not_its_report(
    given: Callable[[], Any], said: str
) -> None:
    """The laws have looked at its first batches. It ended in a traceback, with fewer trials, or with others."""

    def late(ask: Ask) -> list[Point]:
        return given() if ask.batch >= 4 else [{"data.batch_size": 8 * (ask.batch + 1)}]

    course = Course({"data.batch_size": Range(8, 64, 8)}, Search("mine:late", late, 6, 1), 0)
    assert problems(course.space, course.search, course.seed) == []
    done = {(number, 0): Ended("run", 1.0, "digest") for number in range(4)}
    with refused("sweep.search-failed", said):
        look(course, done)
    known = [[Trial(number, {"data.batch_size": 8 * (number + 1)})] for number in range(4)]
    assert [result.trial.number for result in look(course, done, known, further=False).results] == [0, 1, 2, 3]


def test_another_seed_has_other_trials_and_a_search_learns_from_results() -> None:
    first, second = (next_batch(SPACE, search("random"), seed, []) for seed in (1, 2))
    assert first != second
    tpe, batch = search("tpe", startup=4), next_batch(SPACE, search("tpe", startup=4), 1, [])
    for values in ([0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]):
        results = [Result(trial, value) for trial, value in zip(batch, values, strict=True)]
        first, second = second, next_batch(SPACE, tpe, 1, results)
    assert first != second


def test_a_grid_has_every_point_once() -> None:
    course = Course(FINITE, search("grid", 24, 5), 0)
    points = [tuple(trial.point.values()) for trial in complete(course, 2, 0).trials]
    assert len(set(points)) == len(points) == 24


@given(
    st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=12), st.integers(2, 4)
)
def test_who_is_kept_is_better_than_who_is_not(values: list[float | None], factor: int) -> None:
    named = dict(enumerate(values))
    kept = prune(Rung(10, factor), named)
    assert kept == sorted(kept)
    assert len(kept) <= -(-len(values) // factor)
    alive = [number for number, value in named.items() if value is not None]
    assert set(kept) <= set(alive)
    for number in kept:
        for other in set(alive) - set(kept):
            a, b = named[number], named[other]
            assert a is not None
            assert b is not None
            assert (a, number) < (b, other)
    if alive:
        assert kept


def test_the_best_is_the_first_of_equals_and_never_one_that_was_pruned() -> None:
    results = [
        Result(Trial(0, {}), 1.0, pruned=True),
        Result(Trial(1, {}), None),
        Result(Trial(2, {}), 3.0),
        Result(Trial(3, {}), 2.0),
        Result(Trial(4, {}), 2.0),
    ]
    found = best(results, "minimize")
    assert found is not None
    assert found.trial.number == 3
    assert best(results[:2], "minimize") is None
    most = best(results, "maximize")
    assert most is not None
    assert most.trial.number == 2


def test_a_batch_none_of_whose_trials_lives_does_not_hold_up_the_sweep() -> None:
    course = Course(SPACE, search("random", 8, 4), 7, [Rung(5, 3)], 20)
    first = look(course, {})
    after = look(course, {place: Ended("run", None) for place in first.due})
    assert [result.value for result in after.results] == [None] * 4
    assert after.due == [(number, 0) for number in range(4, 8)]


COUNT = iter(range(10**6))


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        (lambda _ask: [], "gives 0 points where 4 are asked for"),
        (lambda ask: [{"a": 3}] * ask.count, "which is not in {'low': 0, 'high': 2}"),
        (lambda ask: [{"b": 1}] * ask.count, "where each of a needs a value"),
        (lambda ask: [{"a": next(COUNT) % 2}] * ask.count, "is not pure"),
        (lambda _ask: 1 // 0, "raised ZeroDivisionError"),
    ],
)
def test_a_search_of_ones_own_that_breaks_a_law_is_told(own: Any, problem: str) -> None:
    found = problems({"a": Range(0, 2)}, Search("own:search", own, 8, 4), 1)
    assert len(found) == 1
    assert found[0].startswith("search: own:search ")
    assert problem in found[0]
