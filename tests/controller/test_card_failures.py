"""Decisions of the controller about GPUs that fail: the cards have names, and everything else is scripted."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.common import card_faults
from orchestrator.controller.events import (
    CallOff,
    CardFailed,
    CheckpointSaved,
    Command,
    Died,
    End,
    Heartbeat,
    Inspect,
    Kill,
    NoRoom,
    Ready,
    Recovered,
    Start,
    Stepped,
)
from orchestrator.controller.rendezvous import card_failures, scaling
from orchestrator.controller.state import Requirements
from orchestrator.errors import RunFailed
from orchestrator.records.progress import Progress
from tests.controller.reports import leaves
from tests.controller.test_controller import FACTS, Play, requirements

AT = Progress(4)
CODES = [fault.code for fault in card_faults.FAULTS if fault.elsewhere]
SUSPECTED = [fault.code for fault in card_faults.FAULTS if fault.card_suspected]


def failed(
    member: int,
    code: str = "gpu.ecc",
    card: str = "GPU-a",
    step: int | None = 4,
    shard: int | None = 1,
    prepares: bool = False,
) -> CardFailed:
    return CardFailed(member, RunFailed("a card failed", code=code), code, card, step, shard, prepares)


def on(*cards: str) -> Play:
    """A run with a worker on each of these cards, in step 4."""
    play = Play(requirements(shards=6, start=len(cards), most=len(cards)))
    play(*(Ready(start.member, FACTS, True, card=cards[start.member]) for start in play.of(Start)))
    play(Stepped(3))
    return play


def lose(play: Play, event: CardFailed) -> None:
    """And the others leave what it has left."""
    others = [member for member in play.begin().members if member != event.member]
    number = play.begin().generation
    play(event, *(leaves(member, number, "peer", AT, accuses=0) for member in others))


def test_a_worker_whose_card_fails_is_lost_and_its_shards_are_computed_elsewhere() -> None:
    play = on("GPU-a", "GPU-b")
    lose(play, failed(0))
    assert [each.member for each in play.of(Kill)] == [0]
    assert (play.begin().members, play.begin().restore) == ((1,), None)
    play(Stepped(4))
    assert [(each.kind, each.steps_lost) for each in play.of(Recovered)] == [("lost", 0)]
    assert play.state.losses == play.state.stalls == {}  # no micro-batch is to blame


def test_a_card_that_fails_twice_is_left_out_with_all_that_compute_there() -> None:
    play = on("GPU-a", "GPU-a", "GPU-b")
    lose(play, failed(0, step=4))
    lose(play, failed(1, step=5))
    assert play.begin().members == (2,)
    assert play.of(Kill)[-1].why.endswith("GPU GPU-a is left out from now on: it failed twice")
    new = play.of(Start)[-1].member
    play(Ready(new, FACTS, True, card="GPU-a"))
    assert play.of(Kill)[-1].member == new
    assert play.state.trouble == "there is room on GPU GPU-a only, which has failed twice"
    assert play.state.failures == 1


def test_who_shares_a_card_that_is_left_out_goes_too() -> None:
    play = on("GPU-a", "GPU-b")
    lose(play, failed(0))
    new = play.of(Start)[-1].member
    play(Ready(new, FACTS, True, card="GPU-a"), leaves(1, play.begin().generation, "regroup", Progress(5)))
    assert play.begin().members == (1, new)
    play(failed(new, step=6))
    assert {each.member for each in play.of(Kill)} == {0, new}


def without_workers() -> Play:
    """A run whose only card, on which two workers computed, has failed twice."""
    play = on("GPU-a", "GPU-a")
    play(CheckpointSaved(3))
    lose(play, failed(0))
    play(failed(1, step=5))
    assert {each.member for each in play.of(Kill)} == {0, 1}
    assert (play.of(End), play.state.phase) == ([], "paused")
    return play


def newcomers(play: Play) -> list[int]:
    return [each.member for each in play.of(Start)[2:]]


def test_without_another_worker_the_run_goes_back_to_its_checkpoint_where_another_card_has_room() -> None:
    play = without_workers()
    first, second = newcomers(play)
    prepared(play, first, "GPU-b")
    assert (play.begin().members, play.begin().restore) == ((first,), 0)
    assert "the run goes on from step 3" in " ".join(play.reasons)
    play(NoRoom(second, "all is taken"))
    play.wait(scaling.RETRY_S + 1, *(Heartbeat(first, "compute", 3, 1, beats) for beats in range(2)))
    assert play.of(Start)[-1].member > second


def test_the_error_names_a_card_that_is_left_out_though_another_one_failed_last() -> None:
    failures = [failed(0), failed(1, step=5), failed(2, card="GPU-b", step=6)]
    assert "GPU GPU-a failed twice" in card_failures.none_left(failures).message


@pytest.mark.parametrize("last", ["no room", "comes there", "fails to prepare"])
def test_without_another_card_the_run_ends(last: str) -> None:
    play = without_workers()
    first, second = newcomers(play)
    play(NoRoom(first, "all is taken"))
    assert play.of(End) == [], "another one is on the way"
    if last == "no room":
        play(NoRoom(second, "all is taken"))
    elif last == "comes there":
        prepared(play, second, "GPU-a")
    else:
        fails_to_prepare(play)
    error = play.error()
    assert error.code == "gpu.none-left"
    assert "GPU GPU-a failed twice, and no worker has another one" in error.message
    assert error.remedy.endswith("leave it out of CUDA_VISIBLE_DEVICES and resume")


def test_a_run_waits_for_a_card_that_others_have_until_its_time_is_up() -> None:
    play = without_workers()
    tries, began = 0, play.now
    while not play.of(End):
        ordered = [each.member for each in play.of(Start)[-2:] if each.member in play.state.members]
        tries += bool(ordered)
        for member in ordered:
            play(NoRoom(member, "others have taken the rest", taken=True))
        play.wait(scaling.RETRY_S + 1)
    limit = play.state.requirements.timeouts.start_s
    assert tries > 2
    assert limit <= play.now - began < limit + 2 * scaling.RETRY_S + 2
    assert play.error().code == "gpu.none-left", "a sweep that ends by this can be resumed"


@pytest.mark.parametrize("shard", [1, None])
def test_what_fails_again_at_another_worker_is_the_pipelines(shard: int | None) -> None:
    """If no shard is known, three workers of a step are enough."""
    play = on("GPU-a", "GPU-b", "GPU-c", "GPU-d")
    for member in (0, 1) if shard is not None else (0, 1, 2):
        assert play.of(End) == []
        lose(play, failed(member, "gpu.assertion", f"GPU-{member}", shard=shard))
    assert play.error().message == "a card failed"


def test_what_no_other_worker_mends_ends_the_run_at_once() -> None:
    play = on("GPU-a", "GPU-b")
    play(failed(0, "gpu.driver-mismatch"))
    assert play.error().code == "gpu.driver-mismatch"


def prepared(play: Play, member: int, card: str) -> None:
    play(Ready(member, FACTS, True, card=card))


def fails_to_prepare(play: Play, code: str = "gpu.ecc", card: str = "GPU-a") -> int:
    """The youngest member; returns it."""
    member = play.of(Start)[-1].member
    play(replace(failed(member, code, card, None, None), prepares=True))
    assert member in [each.member for each in play.of(Kill)] or play.of(End)
    return member


def test_a_card_that_fails_as_a_worker_prepares_costs_that_worker() -> None:
    play = Play(requirements(start=2))
    prepared(play, 0, "GPU-b")
    fails_to_prepare(play)
    prepared(play, play.of(Start)[-1].member, "GPU-c")
    assert play.begin().members == (0, 2)


def test_the_first_generation_does_without_who_was_to_compute_on_a_card_that_failed_twice() -> None:
    """And later ones take whoever comes."""
    play = Play(requirements(start=3, most=3))
    prepared(play, 0, "GPU-b")
    prepared(play, 1, "GPU-c")
    first, second = fails_to_prepare(play), fails_to_prepare(play)
    assert second != first
    assert play.begin().members == (0, 1)
    assert "the run begins with 2 workers" in " ".join(play.reasons)
    play(Stepped(0))
    new = play.of(Start)[-1].member
    assert new > second
    prepared(play, new, "GPU-d")
    play(*(leaves(member, 0, "regroup", Progress(1)) for member in (0, 1)))
    assert play.begin().members == (0, 1, new)


def test_one_who_lands_on_a_card_that_is_left_out_is_no_first_member() -> None:
    play = Play(requirements(start=3, most=3))
    prepared(play, 0, "GPU-b")
    play(replace(failed(1, "gpu.ecc", "GPU-a", None, None), prepares=True))
    play(replace(failed(2, "gpu.ecc", "GPU-a", None, None), prepares=True))
    prepared(play, play.of(Start)[-1].member, "GPU-a")
    assert play.begin().members == (0,)


def test_whoever_shares_a_card_that_fails_twice_is_no_first_member_either() -> None:
    play = Play(requirements(start=3, most=3))
    prepared(play, 0, "GPU-a")
    prepared(play, 1, "GPU-b")
    fails_to_prepare(play)
    fails_to_prepare(play)
    assert play.begin().members == (1,)


def test_whoever_finds_room_on_such_a_card_only_is_no_first_member_either() -> None:
    play = Play(requirements(start=2))
    prepared(play, 0, "GPU-b")
    fails_to_prepare(play)
    fails_to_prepare(play)
    assert play.begin().members == (0,)
    play = Play(requirements(start=1))
    fails_to_prepare(play)
    fails_to_prepare(play)
    assert play.of(End) == []
    play(NoRoom(play.of(Start)[-1].member, "all is taken"))
    assert play.error().code == "gpu.none-left"


def test_kernels_that_fail_as_later_workers_prepare_are_not_the_pipelines() -> None:
    """The workers that train have prepared with the same micro-batch. Before the first step the run would end."""
    play = on("GPU-a", "GPU-b")
    play(Died(0, "killed"), leaves(1, 0, "called off", Progress(4)))
    play(Stepped(4))
    fails_to_prepare(play, "gpu.illegal-access", "GPU-a")
    fails_to_prepare(play, "gpu.illegal-access", "GPU-a")
    assert play.of(End) == []
    assert "left out" in " ".join(play.reasons)
    begins = Play(requirements(start=2))
    fails_to_prepare(begins, "gpu.illegal-access", "GPU-a")
    fails_to_prepare(begins, "gpu.illegal-access", "GPU-b")
    assert begins.error().code == "gpu.illegal-access"


@pytest.mark.parametrize("asked", [requirements(start=1), requirements(start=2, least=2)])
def test_without_enough_cards_the_run_does_not_begin(asked: Requirements) -> None:
    play = Play(asked)
    for _ in range(3):
        assert play.of(End) == []
        fails_to_prepare(play)
    assert play.error().code == "gpu.none-left"
    assert "GPU GPU-a failed twice" in play.error().message


def test_cards_that_do_not_tell_their_names_end_the_run_with_their_failure() -> None:
    play = Play(requirements(start=2, least=1))
    for _ in range(3):
        fails_to_prepare(play, card="")
    assert play.error().code == "gpu.ecc"


def test_what_fails_as_two_workers_prepare_is_the_pipelines() -> None:
    play = Play(requirements(start=4, most=4))
    fails_to_prepare(play, "gpu.assertion", "GPU-a")
    assert play.of(End) == []
    fails_to_prepare(play, "gpu.assertion", "GPU-b")
    assert play.error().code == "gpu.assertion"


def test_one_that_comes_later_and_fails_as_it_prepares_is_tried_again() -> None:
    play = on("GPU-a", "GPU-b")
    lose(play, failed(0))
    before = len(play.of(Start))
    new = fails_to_prepare(play, card="GPU-c")
    assert play.state.phase == "running"
    assert len(play.of(Start)) == before + 1
    assert play.of(Start)[-1].member > new


def test_where_only_a_card_that_is_left_out_has_room_starts_become_rare_until_another_worker_is_lost() -> None:
    play = on("GPU-a", "GPU-b", "GPU-c")
    lose(play, failed(0, step=4))
    fails_to_prepare(play, card="GPU-a")

    def started(seconds: float) -> int:
        """How many workers, each of which comes to that card."""
        before = len(play.of(Start))
        for _ in range(int(seconds)):
            play(Ready(play.of(Start)[-1].member, FACTS, True, card="GPU-a"))
            play.wait(1)
        return len(play.of(Start)) - before

    assert (started(5), play.state.failures) == (1, scaling.FAILURES)
    assert play.state.later is not None
    assert play.state.later > scaling.SELDOM_S - 60
    before = len(play.of(Start))
    lose(play, failed(1, card="GPU-b", step=9))
    assert len(play.of(Start)) > before


def admits(play: Play, member: int, seconds: float) -> list[Command]:
    """The first micro-batch of this member takes so long, while it answers; what was ordered meanwhile."""
    done: list[Command] = []
    for _ in range(math.ceil(seconds)):
        done += play.wait(1, Heartbeat(member, "admission", None, None, 7, "GPU-a"))
    return done


def test_a_worker_whose_first_micro_batch_does_not_end_is_replaced_and_its_card_suspected() -> None:
    play = Play(requirements(start=2))
    prepared(play, 0, "GPU-b")
    limit = play.state.requirements.timeouts.start_s
    done = admits(play, 1, limit + 3)
    assert [each for each in done if isinstance(each, Inspect)] == [Inspect((1,), (1,))]
    (why,) = [each.why for each in done if isinstance(each, Kill)]
    assert "failed on its GPU GPU-a as it prepared (gpu.stands-still): a card does not end what it was given" in why
    assert [(each.card, each.prepares) for each in play.state.card_failures] == [("GPU-a", True)]
    prepared(play, play.of(Start)[-1].member, "GPU-c")
    assert play.begin().members == (0, 2)


def test_a_card_on_which_two_do_not_end_their_first_micro_batch_ends_a_run_without_another_one() -> None:
    play = Play(requirements(start=1))
    limit = play.state.requirements.timeouts.start_s
    for _ in range(3):
        assert play.of(End) == []
        admits(play, play.of(Start)[-1].member, limit + 3)
    assert play.error().code == "gpu.none-left"
    assert "GPU GPU-a failed twice, and no worker has another one: a card does not end" in play.error().message


def test_one_that_comes_later_and_does_not_end_its_first_micro_batch_is_tried_again() -> None:
    play = on("GPU-a", "GPU-b")
    lose(play, failed(0))
    new, limit = play.of(Start)[-1].member, play.state.requirements.timeouts.start_s
    alive = [Heartbeat(1, "compute", 4, 1, 0)]
    for second in range(math.ceil(limit) + 3):
        play.wait(
            1, Heartbeat(new, "admission", None, None, 0, "GPU-c"), *(replace(each, beats=second) for each in alive)
        )
    assert "gpu.stands-still" in play.of(Kill)[-1].why
    assert play.state.phase == "running"
    assert play.of(Start)[-1].member > new


@given(st.sampled_from(["prepare", "admission"]), st.sampled_from(["", "GPU-a"]), st.floats(0, 200), st.floats(0, 200))
def test_no_card_is_blamed_for_what_is_silent_or_computes_nothing_there(
    activity: Any, card: str, still: float, silent: float
) -> None:
    play = Play(requirements(start=1))
    play(Heartbeat(0, activity, None, None, 1, card))
    limit, (member,) = play.state.requirements.timeouts.start_s, play.state.members.values()
    told = replace(member, moved=100 - still, heard=100 - min(silent, still))
    state = replace(play.state, members=play.state.members.with_one(0, told))
    found = card_failures.standing_at_start(state, 100)
    assert bool(found) is (activity == "admission" and card != "" and still > limit >= min(silent, still))
    for event in found:
        assert (event.card, event.code, event.prepares) == (card, "gpu.stands-still", True)
        assert "cluster.start_timeout_s" in event.error.remedy


def test_a_driver_that_does_not_match_ends_the_run_before_it_begins() -> None:
    play = Play(requirements())
    play(replace(failed(0, "gpu.driver-mismatch", step=None), prepares=True))
    assert play.error().code == "gpu.driver-mismatch"


def test_that_of_one_who_is_gone_changes_nothing() -> None:
    play = on("GPU-a", "GPU-b")
    lose(play, failed(0))
    before = play.state
    assert play(failed(0)) == []
    assert play.state == before


FAILURES = st.lists(
    st.builds(
        failed,
        st.integers(0, 3),
        st.sampled_from(CODES),
        st.sampled_from(["", "GPU-a", "GPU-b"]),
        st.none() | st.integers(0, 2),
        st.none() | st.integers(0, 2),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@given(FAILURES)
def test_only_cards_that_failed_twice_are_left_out(failures: list[CardFailed]) -> None:
    out = card_failures.left_out(failures)
    assert "" not in out
    for card in ("GPU-a", "GPU-b"):
        count = sum(each.card == card and each.code in SUSPECTED for each in failures)
        assert (card in out) is (count >= 2)
    assert card_failures.left_out([*failures, *failures]) >= out


@given(FAILURES)
def test_one_worker_alone_never_blames_the_pipeline(failures: list[CardFailed]) -> None:
    alone = [each for each in failures if each.member == failures[-1].member]
    assert not card_failures.is_of_code(alone)
    if card_failures.is_of_code(failures):
        last = failures[-1]
        assert card_faults.BY_CODE[last.code].by_code
        assert last.step is not None or last.prepares
        assert {each.member for each in failures if each.step == last.step} > {last.member}


# ---- workers that stand still in a kernel


def stands_still(play: Play, member: int, step: int = 4, activity: Any = "compute") -> list[Command]:
    """For longer than the limit of 30 s, while the others move and it answers; what was ordered meanwhile."""
    done: list[Command] = []
    for beats in range(32):
        others = [each for each in play.begin().members if each != member and each in play.state.members]
        moving = [Heartbeat(each, "exchange", step, None, beats) for each in others]
        done += play.wait(1, Heartbeat(member, activity, step, 1, 0), *moving)
    return done


def test_a_worker_that_stands_still_in_a_kernel_is_ended_and_its_card_named() -> None:
    play = on("GPU-a", "GPU-b")
    done = stands_still(play, 0)
    assert Inspect((0, 1), stuck=(0,)) in done  # while it still stands there
    (why,) = [each.why for each in done if isinstance(each, Kill)]
    assert "in the compute phase of step 4, shard 1, the limit is 30 s; a kernel on its GPU GPU-a may not end" in why
    play(leaves(1, play.begin().generation, "called off", AT))
    assert play.begin().members == (1,)


def test_one_that_is_called_off_in_an_exchange_and_does_not_leave_stands_still_in_a_kernel() -> None:
    """Nobody blames who waits for others, and so it would be waited for without end."""
    play = on("GPU-a", "GPU-b")
    assert not any(isinstance(each, Kill) for each in stands_still(play, 0, activity="exchange"))
    play(leaves(1, play.begin().generation, "peer", AT, accuses=0))
    assert play.of(CallOff)
    done = stands_still(play, 0, activity="exchange")
    assert [
        "in the exchange phase" in each.why and "a kernel" in each.why for each in done if isinstance(each, Kill)
    ] == [True]
    assert play.begin().members == (1,)


@pytest.mark.parametrize("cards", [("GPU-a",), ("GPU-a", "GPU-a")])
def test_where_all_stand_still_in_an_exchange_those_who_do_not_leave_are_ended(cards: tuple[str, ...]) -> None:
    """Nobody is left who would accuse them."""
    play = on(*cards)
    still = [Heartbeat(member, "exchange", 4, None, 0) for member in play.begin().members]
    done = play.wait(30 + 2 * 30 + 10 + 3, *still)
    assert [each.members for each in done if isinstance(each, CallOff)] == [play.begin().members]
    assert not any(isinstance(each, Kill) for each in done)
    done = play.wait(32, *still)
    assert [each.member for each in done if isinstance(each, Kill)] == [*range(len(cards))]
    assert all("a kernel on its GPU GPU-a may not end" in each.why for each in done if isinstance(each, Kill))


def test_one_that_does_not_leave_as_all_agreed_is_called_off_before_it_is_ended() -> None:
    """The others said farewell, so nobody accuses it."""
    play = on("GPU-a", "GPU-b")
    number = play.begin().generation
    play(leaves(1, number, "regroup", Progress(5)))
    still = Heartbeat(0, "exchange", 4, None, 0)
    done = play.wait(30 + 2 * 30 + 10 + 3, still)
    assert [each.members for each in done if isinstance(each, CallOff)] == [(0,)]
    assert not any(isinstance(each, Kill) for each in done)
    done = play.wait(32, still)
    assert [each.member for each in done if isinstance(each, Kill)] == [0]
    assert play.begin().members == (1,)


def test_a_card_on_which_two_stand_still_is_left_out_where_there_is_another() -> None:
    play = on("GPU-a", "GPU-a", "GPU-b")
    for member, step in ((0, 4), (1, 5)):
        stands_still(play, member, step)
        number = play.begin().generation
        play(*(leaves(each, number, "called off", Progress(step)) for each in play.begin().members if each > member))
        play(Stepped(step))
    assert card_failures.left_out(play.state.card_failures) == {"GPU-a"}
    new = play.of(Start)[-1].member
    play(Ready(new, FACTS, True, card="GPU-a"))
    assert play.of(Kill)[-1].member == new


def test_where_all_compute_on_one_card_standing_still_costs_no_card() -> None:
    play = on("GPU-a", "GPU-a")
    stands_still(play, 0)
    assert play.state.card_failures == ()


def test_in_one_step_it_is_the_pipelines_whichever_micro_batch_shows_it() -> None:
    """A card tells late, so all that its worker computed in the step are as likely."""
    play = on("GPU-a", "GPU-b", "GPU-c", "GPU-d")
    for member in range(3):
        assert play.of(End) == []
        stands_still(play, member)
        number = play.begin().generation
        play(*(leaves(each, number, "called off", AT) for each in play.begin().members if each > member))
    error = play.error()
    assert error.code == "worker.stalled-computing"
    assert card_failures.left_out(play.state.card_failures) == frozenset()
