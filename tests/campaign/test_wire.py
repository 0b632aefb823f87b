"""A wire does to frames what its rule says, and holds their order where it shuffles none."""

from __future__ import annotations

import math
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from campaign.hosts import RULES
from campaign.wire import Rule, due

TIMES = st.lists(st.floats(0, 100), min_size=1, max_size=50).map(sorted)


@given(times=TIMES, seed=st.integers(0, 100))
def test_without_a_rule_each_frame_goes_out_at_once(times: list[float], seed: int) -> None:
    assert [due(Rule(), 0, now, Random(seed)) for now in times] == [[now] for now in times]


@given(now=st.floats(0, 100))
def test_one_way_may_be_cut_and_the_other_not(now: float) -> None:
    assert due(RULES["cut one way"], 1, now, Random(1)) == []
    assert due(RULES["cut one way"], 0, now, Random(1)) == [now]


@given(now=st.floats(0, 100), seed=st.integers(0, 100))
def test_a_jam_holds_and_loses_nothing(now: float, seed: int) -> None:
    assert due(RULES["jam"], 0, now, Random(seed)) == [math.inf]


def test_loss_doubles_and_lateness_are_as_often_as_told() -> None:
    dice, count = Random(1), 10_000
    lost = sum(not due(RULES["lossy wire"], 0, 0.0, dice) for _ in range(count))
    found = [due(RULES["shuffled frames"], 0, 0.0, dice) for _ in range(count)]
    assert abs(lost / count - 0.1) < 0.02
    assert abs(sum(len(each) == 2 for each in found) / count - 0.1) < 0.02
    assert abs(sum(each[0] > 0 for each in found) / count - 0.2) < 0.02


def test_every_rule_is_told_by_a_line() -> None:
    assert all(rule.told().endswith("\n") for rule in RULES.values())
