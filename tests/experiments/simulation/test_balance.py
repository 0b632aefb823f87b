"""The gain of claims and of deals by speed, in virtual time: the figures of the design, and what holds for all speeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.experiments.simulation.balance import after_stealing, assigned, with_work_stealing
from orchestrator.experiments.simulation.conditions import Conditions, conditions
from orchestrator.experiments.simulation.report import Question, answer

ONE_OF_FOUR = [3.0, 1.0, 1.0, 1.0]  # seconds of a micro-batch
SECONDS = st.lists(st.sampled_from([1.0, 1.5, 2.0, 3.0, 8.0]), min_size=1, max_size=6)


@pytest.mark.parametrize(("shards", "equal", "shared", "by_speed"), [(8, 6, 3, 3), (16, 12, 6, 5), (32, 24, 12, 10)])
def test_one_of_four_at_a_third_of_the_speed(shards: int, equal: float, shared: float, by_speed: float) -> None:
    hosted = assigned(shards, ONE_OF_FOUR, range(4), by_speed=False, claims=False)
    assert max(np.multiply(hosted, ONE_OF_FOUR)) == equal
    assert max(after_stealing(hosted, ONE_OF_FOUR).ends) == shared
    moved = assigned(shards, ONE_OF_FOUR, range(4), by_speed=True, claims=False)
    assert max(np.multiply(moved, ONE_OF_FOUR)) == by_speed


def test_half_of_sixteen_at_half_speed() -> None:
    seconds = [2.0, 1.0] * 8
    hosted = assigned(64, seconds, range(16), by_speed=False, claims=False)
    assert max(np.multiply(hosted, seconds)) == 8
    assert max(after_stealing(hosted, seconds).ends) == 6
    assert max(np.multiply(assigned(64, seconds, range(16), by_speed=True, claims=False), seconds)) == 6


@given(SECONDS, st.lists(st.integers(0, 5), min_size=6, max_size=6), st.lists(st.sampled_from([0.0, 4.0]), min_size=6))
def test_claims_lose_nothing_and_help(seconds: list[float], hosted: list[int], late: list[float]) -> None:
    hosted, late = hosted[: len(seconds)], late[: len(seconds)]
    found = after_stealing(hosted, seconds, late)
    assert sum(found.computed) == sum(hosted)
    assert found.ends == [begin + n * each for begin, n, each in zip(late, found.computed, seconds, strict=True)]
    if sum(hosted):
        # Nobody begins a micro-batch while another one could have been done with it, but for the last of the slowest.
        busy = [end for end, n in zip(found.ends, found.computed, strict=True) if n]
        assert max(busy) <= max(begin + n * each for begin, n, each in zip(late, hosted, seconds, strict=True)) + max(
            seconds
        )


def test_claims_reach_within_a_host() -> None:
    seconds, none = np.array([ONE_OF_FOUR] * 2), np.zeros((2, 4))
    hosted = np.array([2, 2, 2, 2])
    assert with_work_stealing(hosted, seconds, none, (0, 0, 1, 1)).tolist() == [[3, 3, 2, 2]] * 2
    assert with_work_stealing(hosted, seconds, none, (0, 1, 2, 3)).tolist() == [[6, 2, 2, 2]] * 2
    assert sum(assigned(16, ONE_OF_FOUR, (0, 0, 1, 1), by_speed=True, claims=True)[:2]) == 6


def rows(by: Conditions, workers: int = 4, shards: int = 8, **changes: bool) -> list[float]:
    modes: Sequence[tuple[str, dict[str, int]]] = [("bsp", {}), ("bap", {})]
    return [row.step_s for row in answer(Question(workers, shards, 0, 10, [("ring", {})], modes, by, **changes))]


def test_a_simulated_step_knows_both() -> None:
    by = conditions({"speeds": "0.3333333333,1,1,1", "compute": "1s", "update": "0s", "network.latency": "0s"})
    equal = rows(by)
    assert equal[0] == pytest.approx(6)
    assert rows(by, by_speed=True)[0] == pytest.approx(3)
    assert rows(by, claims=True)[0] == pytest.approx(3)
    assert rows(by, by_speed=True, claims=True)[1] == equal[1], "asynchronous modes have an answer of their own"


def test_stalls_are_made_up_for_by_claims() -> None:
    by = conditions({"compute": "1s", "update": "0s", "network.latency": "0s", "stalls": "0.3", "stall": "4s"})
    assert rows(by, shards=32, claims=True)[0] < 0.95 * rows(by, shards=32)[0]
