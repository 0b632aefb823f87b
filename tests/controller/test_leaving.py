"""Members whose node goes away leave at a step boundary: others take over first where there is room, and nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.controller.events import Ask, Drained, Kill, NoRoom, Ready, Recovered, Retire, Start, Stepped
from orchestrator.records.progress import Progress
from tests.controller.reports import leaves
from tests.controller.test_controller import FACTS, Play, begun, requirements
from tests.controller.test_elastic import hunt

SECONDS = 30.0


def on(nodes: tuple[int, ...], **more: Any) -> Play:
    """A run with a worker on each of these nodes, in step 4."""
    play = Play(requirements(shards=6, start=len(nodes), most=len(nodes), **more))
    play(*(Ready(start.member, FACTS, True, nodes[start.member]) for start in play.of(Start)))
    play(Stepped(3))
    return play


def leave(play: Play, step: int) -> None:
    """All members of the generation leave behind this many steps."""
    begin = play.begin()
    play(*(leaves(member, begin.generation, "regroup", Progress(step)) for member in begin.members))


def ended(play: Play) -> list[int]:
    play.wait(1.0)
    assert play.of(Kill) == []
    return [each.member for each in play.of(Retire)]


def test_another_one_takes_over_before_it_leaves() -> None:
    play = on((0, 1))
    assert [type(each) for each in play(Drained((1,), SECONDS))] == [Start]
    play.wait(5.0)
    assert (play.of(Ask), play.of(Retire)) == ([], [])  # it works until the other one is there
    new = play.of(Start)[-1].member
    play(Ready(new, FACTS, True, 0))
    assert [each.what for each in play.of(Ask)] == ["regroup"]
    leave(play, 5)
    assert play.begin().members == (0, new)
    assert play.begin().restore is None
    assert ended(play) == [1]
    play(Stepped(5))
    assert [each.steps_lost for each in play.of(Recovered)] == [0]


def test_without_room_for_another_one_it_leaves_at_once() -> None:
    play = on((0, 1))
    play(Drained((1,), SECONDS))
    play(NoRoom(play.of(Start)[-1].member, "no free CPU"))
    play.wait(1.0)
    assert [each.what for each in play.of(Ask)] == ["regroup"]
    leave(play, 5)
    assert play.begin().members == (0,)
    assert ended(play) == [1]


def test_it_waits_for_half_of_the_time_and_no_longer() -> None:
    play = on((0, 1))
    play(Drained((1,), SECONDS))
    play.wait(SECONDS / 2 - 1)
    assert play.of(Ask) == []
    play.wait(2.0)
    assert [each.what for each in play.of(Ask)] == ["regroup"]


def test_where_all_leave_one_gives_the_state_to_those_who_come() -> None:
    play = on((1, 1))
    play(Drained((0, 1), SECONDS))
    first, second = (each.member for each in play.of(Start)[-2:])
    play(Ready(first, FACTS, True, 0))
    leave(play, 5)
    assert play.begin().members == (0, first)
    assert play.begin().state_transfers == ((0, 1),)
    assert ended(play) == [1]
    play(Stepped(5), Ready(second, FACTS, True, 0))
    leave(play, 6)
    assert play.begin().members == (first, second)
    assert ended(play) == [1, 0]


def test_where_they_are_too_few_without_it_it_stays() -> None:
    play = on((0, 1), least=2)
    play(Drained((1,), SECONDS))
    play(NoRoom(play.of(Start)[-1].member, "no free CPU"))
    play.wait(SECONDS)
    assert (play.of(Ask), play.of(Retire)) == ([], [])


def test_a_spare_takes_its_place_at_once() -> None:
    play = Play(requirements(shards=6, start=2, most=2, spares=1))
    play(*(Ready(start.member, FACTS, True, start.member) for start in play.of(Start)))
    play(Stepped(3), Drained((1,), SECONDS))
    play.wait(1.0)
    leave(play, 5)
    assert play.begin().members == (0, 2)
    assert ended(play) == [1]


def test_a_server_leaves_too() -> None:
    play = begun(requirements(servers=1))
    play(Drained((2,), SECONDS))
    new = play.of(Start)[-1]
    assert new.role == "server"
    play(Ready(new.member, {}))
    leave(play, 5)
    assert play.begin().members == (0, 1, new.member)
    assert ended(play) == [2]


def test_one_that_was_starting_there_is_ended_and_started_elsewhere() -> None:
    play = Play(requirements(shards=6, start=2, most=3))
    play(*(Ready(start.member, FACTS, True) for start in play.of(Start)))
    play(Stepped(3))
    late = play.of(Start)[-1].member
    play(Drained((late,), SECONDS))
    assert ended(play) == [late]
    assert play.of(Start)[-1].member > late


def test_what_its_shards_keep_keeps_it_there() -> None:
    """Nobody else has it, so without this worker all would go back."""
    play = Play(requirements(shards=6, start=2, most=2))
    play(*(Ready(start.member, {**FACTS, "shard_state": True}, True, start.member) for start in play.of(Start)))
    play(Stepped(3), Drained((1,), SECONDS))
    play(NoRoom(play.of(Start)[-1].member, "no free CPU"))
    play.wait(SECONDS)
    assert (play.of(Ask), play.of(Retire)) == ([], [])


@pytest.mark.parametrize("seed", [97, 326])
def test_the_one_that_stays_for_its_state_has_the_newest(seed: int) -> None:
    """Its fellows were called off before the step, or before its evaluation, which it alone has."""
    hunt(range(seed, seed + 1), drains=True)


@given(seed=st.integers(0, 2**32), what=st.sampled_from(["", "shard_state", "inherits", "stages"]))
@pytest.mark.slow
def test_whoever_leaves_whenever_no_state_is_lost(seed: int, what: str) -> None:
    """`simulated.World` checks each command."""
    hunt(range(seed, seed + 1), drains=True, **({what: True} if what else {}))
