"""The controller with a model in stages, scripted: who hosts what, and what a loss costs."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.controller.events import (
    BecomeSpare,
    CheckpointSaved,
    Died,
    Drained,
    End,
    Heartbeat,
    Interrupt,
    Kill,
    NoRoom,
    Ready,
    Recovered,
    Reported,
    Start,
    Stepped,
)
from orchestrator.controller.shard_assignment import hosts_of
from orchestrator.controller.state import Requirements
from orchestrator.errors import Interrupted
from orchestrator.records.progress import Progress
from tests.controller.reports import finishes, leaves
from tests.controller.test_controller import FACTS, Play, begun, left, requirements


def staged(**changes: Any) -> Requirements:
    """Two stages of two workers each, four shards."""
    return requirements(**{"stages": 2, "start": 4, "least": 2, "most": 4, **changes})


def holding(member: int, step: int, generation: int = 0) -> Reported:
    """It has the sum of the next step too."""
    return leaves(member, generation, "called off", Progress(step), holds_sum=True)


def test_workers_take_stages_in_turn_and_deal_all_shards_of_each() -> None:
    begin = begun(staged()).begin()
    assert begin.stages == (0, 1, 0, 1)
    assert begin.shards == ((0, 1), (0, 1), (2, 3), (2, 3))
    assert (begin.state_transfers, begin.restore, begin.restorers) == ((), None, ())
    assert hosts_of(begin.stages, begin.shards) == ((0, 0, 2, 2), (1, 1, 3, 3))


def test_one_of_each_stage_restores_and_gives_to_its_stage() -> None:
    begin = begun(staged(checkpoint=3)).begin()
    assert (begin.restore, begin.restorers, begin.forgets) == (0, (0, 1), False)
    assert begin.state_transfers == ((0, 2), (1, 3))


def test_a_stage_whose_workers_do_not_reach_the_checkpoint_waits() -> None:
    play = Play(staged(checkpoint=3))
    for member in range(4):
        play(Ready(member, FACTS, can_restore=member in (0, 2)))
    assert play.state.generation is None
    play.wait(61.0)
    assert "no worker of stage 1 reaches the checkpoint of step 3" in str(play.error())


def test_columns_are_ragged_while_a_worker_is_missing() -> None:
    play = begun(staged())
    play(*[Stepped(n) for n in range(1, 5)])
    play(Died(3, "gone"), *[left(member, 5) for member in (0, 1, 2)])
    begin = play.begin()
    assert (begin.members, begin.stages, begin.forgets) == ((0, 1, 2), (0, 1, 0), False)
    assert begin.shards == ((0, 1), (0, 1, 2, 3), (2, 3))
    assert (begin.restore, begin.restorers, begin.state_transfers, begin.applies) == (None, (), (), ())


def test_a_replacement_takes_the_stage_that_is_thinnest() -> None:
    play = begun(staged())
    play(Stepped(1), Died(1, "gone"), *[left(member, 2) for member in (0, 2, 3)])
    assert play.begin().stages == (0, 0, 1)
    (replacement,) = play.of(Start)[4:]
    play(Ready(replacement.member, FACTS, can_restore=True))
    play(*[left(member, 2, "regroup", generation=1) for member in (0, 2, 3)])
    assert play.begin().members == (0, 2, 3, 4)
    assert play.begin().stages == (0, 0, 1, 1)
    assert play.begin().state_transfers == ((2, 3),)  # a joiner gets its stage's state, and nobody goes back
    assert not play.begin().forgets


def test_with_a_second_vote_a_loss_costs_no_step() -> None:
    """Worker 0 has applied step 4. Those that have not hold what is to be applied."""
    play = begun(staged(spares=1))
    play(*[Stepped(n) for n in range(1, 5)])
    play(Died(2, "gone"), left(0, 5), holding(1, 4), holding(3, 4))
    begin = play.begin()
    assert (begin.members, begin.stages) == ((0, 1, 3, 4), (0, 1, 1, 0))
    assert (begin.forgets, begin.restore, begin.applies) == (False, None, (1, 2))
    assert (begin.run_states, begin.state_transfers) == (((0, 1), (0, 2)), ((0, 3),))
    play(Stepped(5))
    (recovered,) = play.of(Recovered)
    assert (recovered.kind, recovered.steps_lost, recovered.why) == ("lost", 0, "")


def test_spares_stand_by_until_they_get_a_stage() -> None:
    play = begun(staged(spares=1))
    play(Ready(4, FACTS, can_restore=True))
    assert [each.member for each in play.of(BecomeSpare)] == [4]
    play(Died(2, "gone"), *[left(member, 5) for member in (0, 1, 3)])
    assert play.begin().members == (0, 1, 3, 4)
    assert play.begin().state_transfers == ((0, 3),)
    first = Play(staged(spares=1))
    first(*[Ready(member, FACTS, can_restore=True) for member in (4, 0, 1, 2)])
    first(Ready(3, FACTS, can_restore=True))
    assert [each.member for each in first.of(BecomeSpare)] == [3]
    unsplit = begun(requirements(spares=1))
    unsplit(Ready(unsplit.of(Start)[-1].member, FACTS, can_restore=True))
    assert not unsplit.of(BecomeSpare)


def test_a_step_that_nobody_has_applied_is_computed_again() -> None:
    play = begun(staged())
    play(Died(2, "gone"), *[holding(member, 4) for member in (0, 1, 3)])
    assert (play.begin().applies, play.begin().state_transfers, play.begin().forgets) == ((), (), False)


@pytest.mark.parametrize(("checkpoint", "step"), [(3, 3), (None, 0)])
def test_a_stage_without_a_worker_takes_all_back_once_it_has_one(checkpoint: int | None, step: int) -> None:
    play = begun(staged())
    play(*[Stepped(n) for n in range(1, 5)])
    play(*[CheckpointSaved(checkpoint)] if checkpoint else [])
    play(Died(1, "gone"), Died(3, "gone"), left(0, 5), left(2, 5))
    assert play.state.phase == "paused"
    assert "paused: no worker is ready for stage 1" in str(play.reasons)
    first, second = play.of(Start)[4:]
    play(Ready(first.member, FACTS, can_restore=True))
    begin = play.begin()
    assert (begin.members, begin.stages, begin.forgets) == ((0, 2, first.member), (0, 0, 1), True)
    assert (begin.restorers, begin.state_transfers) == ((0, 2), ((0, 1),))
    why = "what stage 1 had learned is lost with its last worker"
    assert f"{why}, so all members go back to step {step}" in str(play.reasons)
    play(Stepped(step))
    (recovered,) = play.of(Recovered)
    assert (recovered.kind, recovered.steps_lost, recovered.why) == ("restarted", 5 - step, why)
    play(Ready(second.member, FACTS, can_restore=True), *[left(m, 4, "regroup", 1) for m in (0, 2, first.member)])
    assert play.begin().stages == (0, 0, 1, 1)


def test_where_there_is_no_room_a_stage_without_a_worker_gets_the_place_of_another() -> None:
    play = begun(staged())
    play(*[Stepped(n) for n in range(1, 5)], CheckpointSaved(3))
    play(Died(1, "gone"), Died(3, "gone"), left(0, 5), left(2, 5))
    play(*[NoRoom(start.member, "the node is gone") for start in play.of(Start)[4:]])
    alive = [Heartbeat(member, "idle", None, None, 1) for member in (0, 2)]
    play.wait(9.0, *alive)
    assert not play.of(Kill)
    play.wait(2.0, *alive)
    _is_ended_for_another(play, play.of(Kill))


def test_so_it_does_where_those_that_were_ordered_never_start() -> None:
    """As Ray keeps them waiting for room."""
    play = begun(staged())
    play(*[Stepped(n) for n in range(1, 5)], CheckpointSaved(3))
    play(Died(1, "gone"), Died(3, "gone"), left(0, 5), left(2, 5))
    late = {start.member for start in play.of(Start)[4:]}
    play.wait(62.0, *[Heartbeat(member, "idle", None, None, 1) for member in (0, 2)])
    assert not play.of(End)
    _is_ended_for_another(play, [kill for kill in play.of(Kill) if kill.member not in late])


def _is_ended_for_another(play: Play, kills: list[Kill]) -> None:
    before = len(play.of(Kill))
    (killed,) = kills
    assert (killed.member, killed.why.partition(",")[0]) == (2, "stage 1 has no worker")
    replacement = play.of(Start)[-1].member
    play(Ready(replacement, FACTS, can_restore=True))
    assert (play.begin().members, play.begin().stages) == ((0, replacement), (0, 1))
    play.wait(30.0, *[Heartbeat(member, "compute", 3, 0, beats) for beats in range(3) for member in (0, replacement)])
    assert len(play.of(Kill)) == before


def test_a_newcomer_takes_the_stage_of_a_worker_that_leaves() -> None:
    play = begun(staged(start=2, most=2))
    play(Drained((1,), None))
    newcomer = play.of(Start)[-1].member
    play(Ready(newcomer, FACTS, can_restore=True), left(0, 1, "regroup"), left(1, 1, "regroup"))
    assert (play.begin().members, play.begin().stages) == ((0, 1, newcomer), (0, 1, 1))


def test_the_last_worker_of_a_stage_is_not_ended_for_another() -> None:
    play = begun(staged(start=2, most=2))
    play(Stepped(1), Died(1, "gone"), left(0, 2))
    play(NoRoom(play.of(Start)[-1].member, "the node is gone"))
    play.wait(25.0, Heartbeat(0, "idle", None, None, 1))
    assert not play.of(Kill)


def test_a_stage_stays_with_its_worker_through_everything() -> None:
    play = begun(staged())
    play(Died(0, "gone"), left(1, 2), left(2, 2), left(3, 2))
    assert play.begin().members == (1, 2, 3)
    assert play.begin().stages == (1, 0, 1)
    play(*[left(member, 3, "peer", generation=1, accuses=0) for member in (1, 2, 3)])
    assert play.begin().stages == (1, 0, 1)


def test_a_run_whose_last_stage_is_lost_after_its_end_goes_back_to_save_it() -> None:
    """Worker 1 alone had what stage 1 had learned."""
    play = begun(requirements(stages=2, least=2))
    play(CheckpointSaved(7), finishes(1, 0, Progress(9), "d"), Died(1, "gone"), finishes(0, 0, Progress(9), "d"))
    assert play.state.phase == "paused"
    (replacement,) = play.of(Start)[2:]
    play(Ready(replacement.member, FACTS, can_restore=True))
    assert play.begin().forgets
    play(*[finishes(member, 1, Progress(9), "d") for member in play.begin().members])
    assert play.error() is None


def test_a_worker_that_finished_may_go_while_another_one_of_its_stage_has() -> None:
    play = begun(staged())
    play(*[finishes(member, 0, Progress(9), "d") for member in (0, 1, 2)], Died(2, "gone"))
    assert play.state.phase == "running"
    play(finishes(3, 0, Progress(9), "d"))
    assert play.error() is None


def test_an_interrupted_run_saves_with_one_of_each_stage() -> None:
    play = begun(staged(least=4, start=4))
    play(Stepped(4), CheckpointSaved(3), Interrupt("SIGTERM"), Died(1, "gone"))
    play(*[left(member, 5) for member in (0, 2, 3)])
    assert play.begin().members == (0, 2, 3)
    assert play.state.phase == "running"


def test_an_interrupted_run_that_has_lost_a_stage_ends() -> None:
    play = begun(staged())
    play(Stepped(4), CheckpointSaved(3), Interrupt("SIGTERM"), Died(1, "gone"), Died(3, "gone"), left(0, 5), left(2, 5))
    assert isinstance(play.error(), Interrupted)


@pytest.mark.parametrize("wrong", [{"least": 1}, {"stages": 5}, {"most": 9}])
def test_requirements_of_stages_are_checked(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"1 <= stages \d <= least"):
        staged(**wrong)
