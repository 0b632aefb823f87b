"""Seats are taken in order, freed by the dead, and there is room elsewhere for everybody else."""

from __future__ import annotations

import pytest

from orchestrator.cluster.actors.members import ActorPlacement
from orchestrator.cluster.placement.actor_slots import ActorSlots

FIRST, SECOND, ELSEWHERE = (ActorPlacement(name, {}) for name in ("first", "second", "elsewhere"))
COPY = ActorPlacement(None, {})


def test_a_replacement_takes_the_seat_of_the_lost() -> None:
    actor_slots = ActorSlots([FIRST, SECOND], ELSEWHERE)
    assert [actor_slots.take(0, "worker"), actor_slots.take(1, "worker"), actor_slots.take(2, "worker")] == [
        FIRST,
        SECOND,
        ELSEWHERE,
    ]
    actor_slots.leave(0)
    actor_slots.leave(2)  # which had none
    actor_slots.leave(0)
    assert [actor_slots.take(3, "worker"), actor_slots.take(4, "worker")] == [FIRST, ELSEWHERE]


def test_a_worker_at_a_site_is_not_replaced_in_the_place_of_a_server() -> None:
    actor_slots = ActorSlots([FIRST, SECOND], ELSEWHERE, servers=1)
    assert [actor_slots.take(0, "worker"), actor_slots.take(1, "server")] == [FIRST, SECOND]
    actor_slots.leave(0)
    actor_slots.leave(1)
    assert [actor_slots.take(2, "worker"), actor_slots.take(3, "server")] == [FIRST, SECOND]


def test_who_may_come_to_a_node_without_the_project_works_in_a_copy() -> None:
    actor_slots = ActorSlots([FIRST], ELSEWHERE, copied=lambda place: COPY if place is ELSEWHERE else None)
    assert [actor_slots.take(0, "worker"), actor_slots.take(1, "worker")] == [FIRST, COPY]
    assert [actor_slots.has_copy(member) for member in (0, 1)] == [False, True]
    actor_slots.leave(0)
    assert actor_slots.take(2, "worker") == FIRST, "the place of the lost one is as it was"


def test_a_slot_on_a_card_that_is_left_out_stays_empty_where_there_is_room_on_others() -> None:
    room = [True, False]
    actor_slots = ActorSlots([FIRST, SECOND], ELSEWHERE, has_room=lambda _gpus: room.pop(0))
    for member, card in enumerate(("GPU-a", "GPU-b")):
        actor_slots.take(member, "worker")
        actor_slots.computes_on(member, card)
    actor_slots.avoid_cards({"GPU-a"})
    actor_slots.leave(0)
    assert actor_slots.take(2, "worker") == ELSEWHERE
    actor_slots.computes_on(2, "GPU-c")
    actor_slots.leave(1)
    assert actor_slots.take(3, "worker") == SECOND, "another card counts first, and nobody asks for room"
    assert actor_slots.take(4, "worker") is None, "there is no other room"


@pytest.mark.parametrize(("gpus", "others"), [(1, False), (2, True)])
def test_others_have_the_cards_on_which_a_run_has_no_slot(gpus: int, others: bool) -> None:
    actor_slots = ActorSlots([FIRST, SECOND], ELSEWHERE, gpus=lambda: gpus)
    for member in (0, 1):
        actor_slots.take(member, "worker")
        actor_slots.computes_on(member, "GPU-a")
    actor_slots.avoid_cards({"GPU-a"})
    actor_slots.leave(0)
    assert actor_slots.take(2, "worker") is None
    assert actor_slots.others_have_cards() == others


@pytest.mark.parametrize(
    ("part", "bundles", "taken"), [(0.5, 1, 1), (0.5, 2, 0.5), (0.4, 2, 0.4), (1, 1, 1), (2, 1, 2)]
)
def test_a_replacement_is_given_no_part_of_a_card_that_is_left_out(part: float, bundles: int, taken: float) -> None:
    """Ray gives a part of a GPU where most of it is taken already."""
    asked: list[float] = []

    def has_room(gpus: float) -> bool:
        asked.append(gpus)
        return True

    beyond = ActorPlacement("elsewhere", {"num_gpus": part})
    places = [ActorPlacement(str(i), {}) for i in range(bundles)]
    actor_slots = ActorSlots(places, beyond, has_room=has_room)
    for member in range(bundles):
        actor_slots.take(member, "worker")
        actor_slots.computes_on(member, "GPU-a")
    assert actor_slots.take(bundles, "worker") == beyond, "so far no card is left out"
    actor_slots.avoid_cards({"GPU-a"})
    actor_slots.leave(0)
    assert actor_slots.take(bundles + 1, "worker") == ActorPlacement("elsewhere", {"num_gpus": taken})
    assert asked == [taken]
