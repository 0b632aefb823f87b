"""A wire does to frames what its rule says, and holds their order where it shuffles none."""

from __future__ import annotations

import math
from itertools import groupby, permutations
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from campaign.hosts import BETWEEN, RULES
from campaign.wire import Flaps, Rule, due, outlets, understood

THERE, BACK = (0, 1), (1, 0)

TIMES = st.lists(st.floats(0, 100), min_size=1, max_size=50).map(sorted)


@given(times=TIMES, seed=st.integers(0, 100))
def test_without_a_rule_each_frame_goes_out_at_once(times: list[float], seed: int) -> None:
    assert [due(Rule(), THERE, now, Random(seed)) for now in times] == [[now] for now in times]


@given(now=st.floats(0, 100))
def test_one_way_may_be_cut_and_the_other_not(now: float) -> None:
    assert due(RULES["cut one way"], BACK, now, Random(1)) == []
    assert due(RULES["cut one way"], THERE, now, Random(1)) == [now]


@given(now=st.floats(0, 100), seed=st.integers(0, 100))
def test_a_jam_holds_and_loses_nothing(now: float, seed: int) -> None:
    assert due(RULES["jam"], THERE, now, Random(seed)) == [math.inf]


def test_loss_doubles_and_lateness_are_as_often_as_told() -> None:
    dice, count = Random(1), 10_000
    lost = sum(not due(RULES["lossy wire"], THERE, 0.0, dice) for _ in range(count))
    found = [due(RULES["shuffled frames"], THERE, 0.0, dice) for _ in range(count)]
    assert abs(lost / count - 0.1) < 0.02
    assert abs(sum(len(each) == 2 for each in found) / count - 0.1) < 0.02
    assert abs(sum(each[0] > 0 for each in found) / count - 0.2) < 0.02


def test_every_rule_is_told_by_a_line() -> None:
    assert all(rule.told().endswith("\n") and understood(rule.told()) == rule for rule in RULES.values())


def test_workers_are_cut_from_each_other_and_not_from_the_driver() -> None:
    passes = {way for way in permutations(range(3), 2) if due(RULES[BETWEEN], way, 0.0, Random(1))}
    assert passes == {(0, 1), (1, 0), (0, 2), (2, 0)}


@given(now=st.floats(0, 100), seed=st.integers(0, 100))
def test_a_wire_that_flaps_is_away_at_first_and_for_half_of_the_time(now: float, seed: int) -> None:
    flaps = Flaps(now, Random(seed))
    away = [flaps.is_away(now + 0.01 * tick) for tick in range(20_000)]
    assert away[:10] == [True] * 10
    lengths = [len(list(some)) for _, some in groupby(away)][:-1]
    assert all(9 <= length <= 151 for length in lengths)
    assert abs(sum(away) / len(away) - 0.5) < 0.15


def test_a_frame_goes_to_whom_it_is_for_once_that_is_known_and_else_to_all_others() -> None:
    one, other, all_ = b"1" * 6, b"2" * 6, b"\xff" * 6
    seen_at: dict[bytes, int] = {}
    assert outlets(0, other + one, 3, seen_at) == [1, 2]
    assert outlets(2, one + other, 3, seen_at) == [0]
    assert outlets(0, other + one, 3, seen_at) == [2]
    assert outlets(0, all_ + one, 3, seen_at) == [1, 2]
