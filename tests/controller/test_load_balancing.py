"""Shards are dealt by speed: the last worker ends as early as possible, few shards move, and noise moves none for long."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.controller.events import Begin, Died, Ready, Rebalance, Slow, Stepped, Timed
from orchestrator.controller.load_balancing import (
    Host,
    Pace,
    assign_by_speed,
    expected_seconds,
    longest,
    share_out,
    shortest_end,
)
from orchestrator.controller.rendezvous.balancing import SLOW_S
from orchestrator.controller.state import Requirements
from orchestrator.records.progress import Progress
from tests.controller.asked import required
from tests.controller.reports import leaves
from tests.controller.test_controller import Play

SECONDS = st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0, 7.0])


def divisions(jobs: int, least: Sequence[int]) -> list[tuple[int, ...]]:
    ranges = [range(few, jobs + 1) for few in least]
    return [counts for counts in itertools.product(*ranges) if sum(counts) == jobs]


@given(st.data())
def test_no_division_ends_earlier_and_none_that_ends_so_early_moves_less(data: st.DataObject) -> None:
    rates = [1 / each for each in data.draw(st.lists(SECONDS, min_size=1, max_size=4))]
    least = data.draw(st.lists(st.integers(1, 2), min_size=len(rates), max_size=len(rates)))
    jobs = data.draw(st.integers(sum(least), max(sum(least), 9)))
    held = data.draw(st.lists(st.integers(0, 5), min_size=len(rates), max_size=len(rates)))

    def end(counts: Sequence[int]) -> float:
        return max(count / rate for count, rate in zip(counts, rates, strict=True))

    def taken(counts: Sequence[int]) -> int:
        return sum(max(0, count - has) for count, has in zip(counts, held, strict=True))

    every = divisions(jobs, least)
    best = min(map(end, every))
    counts = tuple(share_out(jobs, rates, held, least))
    assert counts in every
    assert math.isclose(end(counts), best)
    assert math.isclose(shortest_end(jobs, rates, least), best)
    if sum(held) <= jobs:  # as where nobody has what another one has
        assert taken(counts) == min(taken(each) for each in every if end(each) <= best * (1 + 1e-9))


@given(st.data())
def test_every_shard_is_dealt_once_and_every_worker_has_one(data: st.DataObject) -> None:
    shards = data.draw(st.integers(1, 24))
    workers = data.draw(st.integers(1, min(shards, 6)))
    owner = data.draw(st.lists(st.integers(-1, workers - 1), min_size=shards, max_size=shards))
    hosts = [
        Host(data.draw(SECONDS), data.draw(st.integers(0, 2)), frozenset(i for i in range(shards) if owner[i] == rank))
        for rank in range(workers)
    ]
    dealt = assign_by_speed(shards, hosts)
    assert sorted(itertools.chain(*dealt)) == list(range(shards))
    assert all(own and list(own) == sorted(own) for own in dealt)
    again = [Host(host.seconds, host.group, frozenset(own)) for host, own in zip(hosts, dealt, strict=True)]
    assert assign_by_speed(shards, again) == dealt, "what is dealt well stays where it is"


def test_too_few_shards() -> None:
    with pytest.raises(ValueError, match="3 workers cannot share 2 shards"):
        assign_by_speed(2, [Host(1.0, 0)] * 3)


@pytest.mark.parametrize(("shards", "end"), [(8, 3.0), (16, 5.0), (32, 10.0)])
def test_one_of_four_at_a_third_of_the_speed(shards: int, end: float) -> None:
    hosts = [Host(3.0 if rank == 0 else 1.0, rank) for rank in range(4)]
    assert longest(hosts, assign_by_speed(shards, hosts)) == end
    equal = [range(shards // 4)] * 4
    assert longest(hosts, equal) == 3 * shards / 4


def test_a_node_whose_workers_share_is_one_machine() -> None:
    """Two workers of one node, of which one takes three times as long, compute 4 in the time that one other needs for 3."""
    hosts = [Host(1.0, 0), Host(3.0, 0), Host(1.0, 1)]
    dealt = assign_by_speed(14, hosts)
    assert [len(dealt[0]) + len(dealt[1]), len(dealt[2])] == [8, 6]
    assert longest(hosts, dealt) == 6.0


def test_what_is_expected_of_whom() -> None:
    assert expected_seconds([Pace((), 1, 0), Pace((), 1, 1)]) is None
    assert expected_seconds([Pace((), 1, 0), Pace((), 0.5, 1)]) == [1, 2]
    known = [Pace((3, 1, 9), 1, 0), Pace((8,), 1, 1), Pace((2,), 1, 0)]
    assert expected_seconds([*known, Pace((), 1, 1), Pace((), 1, 0), Pace((), 1, 7)]) == [3, 8, 2, 8, 2.5, 3]
    assert expected_seconds([Pace((2,), 1, 0), Pace((), 0.5, 1)]) == [2, 4]


# ---- decided by the controller

STEPS = 1_000_000


def requirements(shards: int = 8, workers: int = 4, **changes: object) -> Requirements:
    alike: dict[str, Any] = {"reports_stragglers": True, "by_speed": True, "start_s": 60.0, "step_s": 600.0}
    usual = {**alike, "shards": shards, "start": workers}
    return required(**{**usual, **changes})


def begun(
    asked: Requirements, nodes: Sequence[int] | None = None, speeds: Sequence[float] = (), **manifest: object
) -> Play:
    play = Play(asked)
    told = {"steps": STEPS, "shard_state": False, **manifest}
    for rank in range(asked.members.start):
        node = rank if nodes is None else nodes[rank]
        play(Ready(rank, told, node=node, speed=speeds[rank] if speeds else 1.0))
    return play


def a_round(play: Play, seconds: Sequence[float]) -> None:
    """Each worker tells its time, and where they were asked to, all leave at the boundary after it."""
    begin = play.begin()
    play.now += 1.0
    for member, each in zip(begin.members, seconds, strict=True):
        play(Timed(member, each))
    if "regroup" in play.state.generation.asked:  # type: ignore[union-attr]
        step = play.state.steps_seen + 1
        play(Stepped(step - 1))
        play(*(leaves(member, begin.generation, "regroup", Progress(step)) for member in begin.members))


def sizes(begin: Begin) -> list[int]:
    return [len(shards) for shards in begin.shards]


def test_a_slow_worker_gets_fewer_shards_after_two_rounds() -> None:
    play = begun(requirements(16))
    before = play.begin().shards
    a_round(play, [0.02, 0.02, 0.06, 0.02])
    assert play.of(Begin)[1:] == []
    a_round(play, [0.02, 0.02, 0.06, 0.02])
    after = play.begin()
    assert (len(play.of(Begin)), sizes(after)) == (2, [5, 5, 1, 5])
    assert all(set(one) <= set(other) for one, other in zip(before, after.shards, strict=True) if len(one) < len(other))
    (redeal,) = play.of(Rebalance)
    assert redeal == Rebalance({0: 0.02, 1: 0.02, 2: 0.06, 3: 0.02}, 0.24, 0.1, 3)
    assert "shards move (3): the computing of a step is expected to take 100 ms in place of 240 ms" in "; ".join(
        play.reasons
    )
    for _ in range(100):
        a_round(play, [0.02, 0.02, 0.06, 0.02])
    assert len(play.of(Begin)) == 2


def test_what_is_off_or_not_worth_it_moves_nothing() -> None:
    def rounds(play: Play, seconds: Sequence[float]) -> int:
        for _ in range(9):
            a_round(play, seconds)
        return len(play.of(Rebalance))

    slow = [0.02, 0.02, 0.06, 0.02]
    assert rounds(begun(requirements(16)), slow) == 1
    assert rounds(begun(requirements(16, by_speed=False)), slow) == 0
    assert rounds(begun(requirements(16), steps=5), slow) == 0, "a second is more than those steps can save"
    assert rounds(begun(requirements(4)), slow) == 0, "each hosts one at least"
    assert rounds(begun(requirements(40)), [0.02, 0.02, 0.0215, 0.02]) == 0, "less than a tenth"


def test_where_workers_of_a_node_share_their_shards_nodes_are_balanced() -> None:
    seconds = [0.02, 0.06, 0.02, 0.02]
    alone = begun(requirements(16, claims=True), nodes=[0, 0, 0, 0])
    nodes = begun(requirements(16, claims=True), nodes=[0, 0, 1, 1])
    keeping = begun(requirements(16, claims=True), nodes=[0, 0, 0, 0], shard_state=True)
    for _ in range(2):
        for play in (alone, nodes):
            a_round(play, seconds)
        begin = keeping.begin()
        keeping(*(Timed(member, each) for member, each in zip(begin.members, seconds, strict=True)))
    assert len(alone.of(Begin)) == 1
    assert sizes(nodes.begin()) == [3, 3, 5, 5]
    assert len(keeping.of(Rebalance)) == 1, "what a shard keeps is with its worker alone"


def test_what_was_learned_outlives_a_generation() -> None:
    play = begun(requirements(16))
    for _ in range(2):
        a_round(play, [0.02, 0.02, 0.06, 0.02])
    begin = play.begin()
    play(Died(0, "killed"))
    play(*(leaves(member, begin.generation, "peer", Progress(1)) for member in begin.members[1:]))
    assert sizes(play.begin()) == [7, 2, 7]
    play(Ready(4, {"steps": STEPS, "shard_state": False}, node=2))
    begin = play.begin()
    play(*(leaves(member, begin.generation, "regroup", Progress(1)) for member in begin.members))
    assert sizes(play.begin()) == [6, 2, 2, 6], "as fast as its node, beside which it stands"


def test_declared_speeds_count_until_times_are_known() -> None:
    play = begun(requirements(12, workers=2), speeds=[1.0, 0.5])
    assert sizes(play.begin()) == [8, 4]
    for _ in range(2):
        a_round(play, [0.02, 0.02])
    assert sizes(play.begin()) == [6, 6]


def test_a_stage_is_dealt_by_speed_among_its_workers() -> None:
    play = begun(requirements(6, workers=4, stages=2, least=2))
    assert play.begin().stages == (0, 1, 0, 1)
    for _ in range(2):
        a_round(play, [0.02, 0.2, 0.04, 0.05])
    assert sizes(play.begin()) == [4, 1, 2, 5]
    assert play.begin().stages == (0, 1, 0, 1)


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(2, 5), st.integers(1, 8), st.booleans())
def test_noise_moves_shards_a_few_times_at_most(seed: int, workers: int, each: int, even: bool) -> None:
    """Speeds are constant, and reports differ from them by up to 5 %: for all time shards move a few times, to where no other
    deal is much better."""
    dice = Random(seed)
    true = [1.0 if even else dice.choice([1.0, 1.1, 1.5, 2.0, 3.0]) for _ in range(workers)]
    play = begun(requirements(workers * each, workers=workers))
    for _ in range(128):
        a_round(play, [own * dice.uniform(0.95, 1.05) for own in true])
    assert len(play.of(Rebalance)) <= 3
    hosts = [Host(own, rank, frozenset(play.begin().shards[rank])) for rank, own in enumerate(true)]
    reached, best = longest(hosts, play.begin().shards), longest(hosts, assign_by_speed(workers * each, hosts))
    assert best >= reached * 0.75, "what is clearly better is done"


@pytest.mark.slow
@given(st.integers(0, 2**32))
def test_whatever_is_reported_small_gains_move_shards_ever_less_often(seed: int) -> None:
    dice = Random(seed)
    play = begun(requirements(16))
    for number in range(256):
        lame = (number // 4) % 4  # the worst that can be: who is slower changes all the time, by less than a clear gain
        a_round(play, [1.25 + dice.random() / 50 if rank == lame else 1.0 for rank in range(4)])
    assert len(play.of(Rebalance)) <= math.log2(256)


# ---- who is far slower


def test_a_worker_that_is_far_slower_is_named_once() -> None:
    play = begun(requirements(4))
    for _ in range(4 + int(SLOW_S)):
        a_round(play, [0.02, 0.021, 0.06, 0.019])
    assert play.of(Slow) == [Slow(2, 0.06, 0.02, SLOW_S)]
    for _ in range(20):
        a_round(play, [0.02, 0.021, 0.06, 0.019])
    assert len(play.of(Slow)) == 1


def test_who_is_slow_for_a_moment_or_not_far_slower_is_not_named() -> None:
    play = begun(requirements(4))
    for number in range(60):
        a_round(play, [0.02, 0.02, 0.06 if number % 8 < 5 else 0.02, 0.039])
    assert play.of(Slow) == []
