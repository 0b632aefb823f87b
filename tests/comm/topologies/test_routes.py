"""On its routes what a worker sends comes to every other worker once, over links of the topology alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.comm.topologies import TOPOLOGIES, build_schedule
from orchestrator.comm.topologies.routes import Routes
from orchestrator.comm.topologies.schedule import Schedule

schedules = st.builds(
    lambda name, workers, servers: build_schedule(name, workers, **({"servers": servers} if "server" in name else {})),
    st.sampled_from(sorted(TOPOLOGIES)),
    st.integers(1, 9),
    st.integers(1, 3),
)


def delivered(schedule: Schedule, routes: Routes, origin: int, part: int) -> list[int]:
    """The members that get the slice, in order; one that gets it twice stands there twice."""
    got, waiting = [], [origin]
    while waiting:
        member = waiting.pop(0)
        for peer in routes.onward(member, origin, part):
            assert peer in schedule.peers_of(member)
            got.append(peer)
            waiting.append(peer)
            assert len(got) <= 4 * schedule.members
    return got


@given(schedules)
def test_each_slice_comes_to_each_other_worker_once(schedule: Schedule) -> None:
    routes = Routes(schedule)
    for origin in range(schedule.workers):
        for part in range(routes.slices):
            got = [member for member in delivered(schedule, routes, origin, part) if member < schedule.workers]
            assert sorted(got) == [worker for worker in range(schedule.workers) if worker != origin]


@given(schedules)
def test_who_hands_on_knows_it_beforehand(schedule: Schedule) -> None:
    routes = Routes(schedule)
    for origin in range(schedule.workers):
        for part in range(routes.slices):
            through = {m for m in range(schedule.members) if m != origin and routes.onward(m, origin, part)}
            assert through == {m for m in range(schedule.members) if (origin, part) in routes.relays(m)}


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_each_server_carries_one_slice(servers: int) -> None:
    routes = Routes(build_schedule("parameter_server", 4, servers=servers))
    assert routes.slices == servers
    assert [routes.onward(0, 0, part) for part in range(servers)] == [(4 + part,) for part in range(servers)]


def test_in_a_ring_it_goes_round_on_both_sides() -> None:
    routes = Routes(build_schedule("ring", 5))
    assert routes.onward(0, 0, 0) == (1, 4)
    assert routes.onward(1, 0, 0) == (2,)
    assert routes.onward(2, 0, 0) == ()
