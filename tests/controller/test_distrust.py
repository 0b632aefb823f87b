"""Decisions of the controller after the verdict of a check."""

from __future__ import annotations

from typing import Any

from orchestrator.controller.checking import Verdict
from orchestrator.controller.events import Begin, Distrust, Kill, Ready, Recovered, Start, Stepped
from orchestrator.errors import Inconsistent
from orchestrator.records.progress import Progress
from tests.controller.reports import leaves
from tests.controller.test_controller import FACTS, Play, requirements

AT = Progress(4)
WRONG = Verdict(4, 2, 3, wrong=(1,), between=(0, 1))


def on(nodes: tuple[int, ...], **more: Any) -> Play:
    """A run with a worker on each of these nodes, in step 4."""
    play = Play(requirements(shards=6, start=len(nodes), most=len(nodes), **more))
    play(*(Ready(start.member, FACTS, True, nodes[start.member]) for start in play.of(Start)))
    play(Stepped(3))
    assert play.begin().members == tuple(range(len(nodes)))
    return play


def leave(play: Play, *members: int, verdict: Verdict = WRONG) -> None:
    for member in members:
        play(leaves(member, play.begin().generation, "distrust", AT, verdict=verdict))


def test_who_computed_wrongly_is_put_out_and_the_others_go_on_at_the_same_step() -> None:
    play = on((0, 0, 0))
    leave(play, 0, 1, 2)
    assert play.of(Distrust) == [Distrust(WRONG, (1,), (0, 1), machines=False)]
    assert [each.member for each in play.of(Kill)] == [1]
    assert (play.begin().generation, play.begin().members, play.begin().restore) == (1, (0, 2), None)
    assert play.state.generation is not None
    assert play.state.generation.steps == 4
    play(Stepped(4))
    assert [(each.kind, each.steps_lost) for each in play.of(Recovered)] == [("lost", 0)]
    assert play.state.losses == play.state.stalls == {}  # no micro-batch is to blame


def test_the_order_of_the_reports_changes_nothing() -> None:
    play = on((0, 0, 0))
    leave(play, 1, 2, 0)  # what the one that is wrong says counts, too: it has heard the same votes
    assert play.begin().members == (0, 2)
    assert len(play.of(Distrust)) == 1


def test_where_there_are_other_machines_its_own_is_left_out() -> None:
    """With all that runs there, and with what is started there later."""
    play = on((0, 1, 1, 2))
    leave(play, 0, 1, 3)
    assert play.of(Distrust)[0].machines
    assert sorted(each.member for each in play.of(Kill)) == [1, 2]
    assert play.begin().members == (0, 3)
    (first, second) = [each.member for each in play.of(Start)][-2:]
    play(Ready(first, FACTS, True, 1), Ready(second, FACTS, True, 2))
    assert play.of(Kill)[-1].member == first
    play(*(leaves(member, 1, "regroup", Progress(5)) for member in (0, 3)))
    assert play.begin().members == (0, 3, second)


def test_on_one_machine_another_process_takes_its_place() -> None:
    play = on((0, 0, 0))
    leave(play, 0, 1, 2)
    new = play.of(Start)[-1].member
    play(Ready(new, FACTS, True, 0))
    play(*(leaves(member, 1, "regroup", Progress(5)) for member in (0, 2)))
    assert play.begin().members == (0, 2, new)


def test_a_wrong_answer_that_is_nobodys_for_certain_ends_the_run() -> None:
    play = on((0, 1))
    leave(play, 0, verdict=Verdict(4, 2, 3, wrong=(), between=(0, 1)))
    error = play.error()
    assert isinstance(error, Inconsistent)
    assert "step 4, shard 2 came out differently at worker 0 and worker 1" in error.message
    assert play.of(Kill) == []


def test_a_copy_that_arrived_otherwise_names_the_pair_and_costs_nobody_at_first() -> None:
    """At the second time one of the two goes, since it comes again."""
    verdict = Verdict(4, None, 3, wrong=(), between=(2, 0), copied=True)
    play = on((0, 0, 0))
    leave(play, 0, 1, 2, verdict=verdict)
    assert play.of(Kill) == []
    assert play.of(Distrust)[-1].between == (2, 0)
    assert "what worker 2 sent to worker 0 arrived otherwise" in " ".join(play.reasons)
    assert play.begin().members == (0, 1, 2)
    leave(play, 0, 1, 2, verdict=verdict)
    (gone,) = play.of(Kill)
    assert (gone.member, "for the second time" in gone.why) == (2, True)
    assert play.begin().members == (0, 1)


def test_a_sum_that_changed_under_way_is_made_again_by_all_where_nobody_is_known() -> None:
    play = on((0, 0, 0))
    leave(play, 0, 1, 2, verdict=Verdict(4, None, 3, wrong=(), between=(1, 2)))
    assert play.begin().members == (0, 1, 2)
    assert len(play.of(Begin)) == 2
    assert play.of(Kill) == []
