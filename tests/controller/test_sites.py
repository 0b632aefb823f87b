"""Shards stay at their sites: no others host them, and they are dealt evenly; one that is away sits out, or is waited for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.controller.events import Begin, CheckpointSaved, Died, End, Ready, Start, Stepped
from orchestrator.controller.sites import assign_at_sites, away, hosts, workers_at
from tests.controller.test_controller import FACTS, Play, left, prepare, requirements

SITES = {"a": (0, 1, 2), "b": (3,)}
NAMES = ["a", "b", "c"]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, dict[str, tuple[int, ...]], list[tuple[str, ...]]]:
    """Shards, some of them of sites, and of each worker the sites of its node."""
    shards = draw(st.integers(1, 7))
    owner = draw(st.lists(st.sampled_from([*NAMES, ""]), min_size=shards, max_size=shards))
    sites = {name: tuple(i for i in range(shards) if owner[i] == name) for name in NAMES if name in owner}
    offered = draw(
        st.lists(st.lists(st.sampled_from(NAMES), unique=True, max_size=2).map(tuple), min_size=1, max_size=4)
    )
    return shards, sites, offered


def loads(dealt: Sequence[Sequence[int]]) -> list[int]:
    return sorted(map(len, dealt), reverse=True)


@given(layouts(), st.data())
def test_every_shard_is_at_its_site_and_no_deal_is_more_even(layout: Any, data: st.DataObject) -> None:
    shards, sites, offered = layout
    may = hosts(shards, sites, offered)
    owner = data.draw(st.lists(st.integers(-1, len(offered) - 1), min_size=shards, max_size=shards))
    held = [{i for i in range(shards) if owner[i] == worker} for worker in range(len(offered))]
    dealt = assign_at_sites(may, held)
    of_those_away = {shard for site in away(sites, offered) for shard in sites[site]}
    assert sorted(shard for each in dealt for shard in each) == [i for i in range(shards) if i not in of_those_away]
    assert all(worker in may[shard] for worker, each in enumerate(dealt) for shard in each)
    every = itertools.product(*(able for able in may if able))
    best = min(sorted(map(hosting.count, range(len(offered))), reverse=True) for hosting in map(list, every))
    assert loads(dealt) == best
    assert assign_at_sites(may, [set(each) for each in dealt]) == dealt, "what is balanced stays where it is"


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3), st.integers(1, 3))
def test_who_is_lost_at_one_site_moves_nothing_at_another(mine: int, theirs: int, here: int, there: int) -> None:
    sites = {"a": tuple(range(mine)), "b": tuple(range(mine, mine + theirs))}
    offered = [("a",)] * here + [("b",)] * (there + 1)
    before = assign_at_sites(hosts(mine + theirs, sites, offered), [()] * len(offered))
    after = assign_at_sites(hosts(mine + theirs, sites, offered[:-1]), [set(each) for each in before[:-1]])
    assert after[:here] == before[:here]
    assert all(set(now) >= set(then) for now, then in zip(after, before, strict=False)), (
        "those of the lost one alone move"
    )


@given(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 5), min_size=1), st.integers(0, 4), st.data())
def test_each_site_has_a_worker_and_none_more_than_shards(
    counts: dict[str, int], free: int, data: st.DataObject
) -> None:
    ends = list(itertools.accumulate(counts.values()))
    sites = {name: tuple(range(end - count, end)) for (name, count), end in zip(counts.items(), ends, strict=True)}
    shards = ends[-1] + free
    workers = data.draw(st.integers(len(counts), shards if len(counts) < shards else len(counts)))
    found = workers_at(sites, workers, shards)
    assert sum(found.values()) == workers
    assert all(1 <= found[name] <= counts[name] for name in counts)
    assert found.get("", 0) <= free
    with pytest.raises(ValueError, match="sites"):
        workers_at(sites, len(counts) - 1, shards)


# ---- under the controller


def begun(**changes: Any) -> Play:
    """Worker 0 is at a, worker 1 at b."""
    play = Play(requirements(sites=SITES, **changes))
    for start, site in zip(play.of(Start), "ab", strict=True):
        play(Ready(start.member, FACTS, can_restore=True, node=start.member, sites=(site,)))
    play(Stepped(0))
    return play


def lost(play: Play, step: int = 5) -> list[Any]:
    """Worker 1, with its site; another one is ordered, which does not start."""
    return [*play(Died(1, "its node is gone")), *play(left(0, step, why="called off"))]


def test_shards_are_dealt_by_site_from_the_first_generation_on() -> None:
    (first,) = begun().of(Begin)
    assert first.shards == ((0, 1, 2), (3,))
    assert first.absent == ()


def test_a_run_does_not_begin_without_a_site() -> None:
    play = Play(requirements(sites=SITES, sits_out=True))
    play(*(Ready(start.member, FACTS, node=start.member, sites=("a",)) for start in play.of(Start)))
    assert not play.of(Begin)


def test_a_site_that_is_away_sits_out_and_takes_part_again() -> None:
    play = begun(sits_out=True)
    lost(play)
    without = play.of(Begin)[-1]
    assert (without.members, without.shards, without.absent) == ((0,), ((0, 1, 2, 3),), (3,))
    assert "b away: shards 3 sit out" in " ".join(play.reasons)
    play(Stepped(6))
    back = play.of(Start)[-1].member
    play(Ready(back, FACTS, can_restore=True, node=7, sites=("b",)), left(0, 9, why="regroup", generation=1))
    again = play.of(Begin)[-1]
    assert (again.members, again.shards, again.absent) == ((0, back), ((0, 1, 2), (3,)), ())
    assert again.state_transfers == ((0, 1),)


def test_a_start_at_a_site_that_is_away_is_tried_again_and_again() -> None:
    """It is not given up after three, as one is that fails."""
    play = begun(sits_out=True)
    lost(play)
    play(Stepped(6))
    before = len(play.of(Start))
    play.wait(400, prepare(0, 1))
    assert len(play.of(Start)) >= before + 5
    assert not play.of(End)


def test_where_the_run_waits_it_pauses_until_the_site_is_back() -> None:
    play = begun()
    lost(play)
    assert play.state.phase == "paused"
    assert "no worker is ready at site b" in " ".join(play.reasons)
    play.wait(20)
    back = play.of(Start)[-1].member
    play(Ready(back, FACTS, can_restore=True, node=7, sites=("b",)))
    assert play.of(Begin)[-1].shards == ((0, 1, 2), (3,))


def test_a_run_that_waits_in_vain_ends_with_the_site() -> None:
    play = begun()
    lost(play)
    play.wait(100)
    (end,) = play.of(End)
    assert "no worker is ready at site b" in str(end.error)
    assert "resume the run" in str(end.error and end.error.remedy)


def test_what_a_checkpoint_has_beyond_the_survivors_stays() -> None:
    """The lost site took part in it."""
    play = begun(sits_out=True)
    play(Stepped(5), CheckpointSaved(6))
    lost(play, step=5)
    assert play.of(Begin)[-1].restore == 0
