"""The places of members in the picture: everyone once, nobody on top of another, from 1 member to 64, whatever the
topology."""

from __future__ import annotations

import itertools
import math

import pytest

from orchestrator.comm.topologies import TOPOLOGIES, Move, Schedule, build_schedule
from orchestrator.comm.topologies.listed import listed
from orchestrator.driver.report.pictures.places import APART, place_members

SCHEDULES = [
    *(build_schedule(name, workers) for name in TOPOLOGIES for workers in (1, 2, 3, 4, 7, 64)),
    *(build_schedule("tree", 64, arity=arity) for arity in (1, 3, 8, 63)),
    *(build_schedule("parameter_server", workers, servers=servers) for workers, servers in ((1, 3), (4, 4), (60, 4))),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"{s.topology}-{s.workers}-{s.servers}-{len(s.links())}")
def test_everyone_has_room(schedule: Schedule) -> None:
    placed = place_members(schedule)
    assert sorted(placed) == list(range(schedule.members))
    for one, other in itertools.combinations(placed.values(), 2):
        assert math.dist(one, other) >= APART * 0.999


def test_a_tree_stands_in_layers_with_parents_over_their_children() -> None:
    placed = place_members(build_schedule("tree", 7, arity=2))
    heights = [placed[member][1] for member in range(7)]
    assert heights[0] > heights[1] == heights[2] > heights[3] == heights[4] == heights[5] == heights[6]
    assert placed[1][0] == pytest.approx((placed[3][0] + placed[4][0]) / 2)
    assert placed[0][0] == pytest.approx((placed[1][0] + placed[2][0]) / 2)


def test_links_decide_and_not_names() -> None:
    tree = build_schedule("tree", 7, arity=2)
    disguised = listed("ring", tree.workers, tree.servers, tree.owners, tree.rounds)
    assert place_members(disguised) == place_members(tree)


def test_a_ring_stands_on_a_circle_and_servers_inside_the_workers() -> None:
    assert len({round(math.hypot(x, y), 9) for x, y in place_members(build_schedule("ring", 9)).values()}) == 1
    placed = place_members(build_schedule("parameter_server", 6, servers=3))
    distances = [math.hypot(*placed[member]) for member in range(9)]
    assert max(distances[6:]) < min(distances[:6])


def test_a_long_chain_does_not_become_a_long_page() -> None:
    placed = place_members(build_schedule("tree", 64, arity=1))
    assert max(y for _, y in placed.values()) - min(y for _, y in placed.values()) < 30


def test_links_that_fall_apart_are_no_tree() -> None:
    """Three links of four members, of which three form a circle: the count of a tree, and none."""
    circle = tuple(Move(a, b, 0, "add") for a, b in ((0, 1), (1, 2), (2, 0)))
    assert len(place_members(listed("odd", 4, 0, (0,), (circle,)))) == 4
