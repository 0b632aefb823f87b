"""Rule C1: gradients can be read where they lie, on every topology, ordered by nothing but the schedule's messages.

Why it holds: a worker goes on to the next step when it has every result, and a result exists only when every
contribution and every partial sum that went into it has been read. So no contribution and no sum is overwritten unread.
A result of step t + 1 exists only after every worker has sent its contribution to it, and each did so after its own
step t, its reads of peers' results included. So no result is overwritten unread either, though there is one copy of it.

Contributions to a chunk are read all at once, later than their messages come. The result waits for that.

Not here: what the transport does with a view once it was read.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import chain

import pytest
from hypothesis import given, settings

from orchestrator.comm.topologies import Move, build_schedule, listed
from orchestrator.comm.topologies.happens_before import Access, Layout, Race, races, separate
from orchestrator.comm.topologies.schedule import Region
from tests.comm.topologies.cases import NAMES, Case, cases, variants

pytestmark = pytest.mark.slow


def two_results(region: Region, chunk: int, step: int) -> Hashable:
    """Three regions, and two copies of the results, by the parity of the step."""
    return (region, chunk, step % 2 if region == "result" else 0)


def partial_in_result(region: Region, chunk: int, _step: int) -> Hashable:
    """Sums grow where the result will lie, one copy of it. (Layout GR of the prototype, rule C1's "one R".)"""
    return (region == "contribution", chunk)


def partial_in_two_results(region: Region, chunk: int, step: int) -> Hashable:
    """Sums grow where the result will lie, two copies of it. (Layout G1R2 of the prototype.)"""
    return (region == "contribution", chunk, 0 if region == "contribution" else step % 2)


def in_place(_region: Region, chunk: int, _step: int) -> Hashable:
    """One slot for everything, as libraries that reduce in place have it."""
    return chunk


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", [separate, two_results, partial_in_two_results])
def test_no_access_of_a_peer_races_with_a_write(name: str, layout: Layout) -> None:
    for plan in chain.from_iterable(variants(name, workers) for workers in range(1, 9)):
        assert races(plan, layout) == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("workers", [16, 33, pytest.param(64, marks=pytest.mark.long)])
def test_no_race_with_many_workers(name: str, workers: int) -> None:
    assert races(build_schedule(name, workers), steps=3) == []


@settings(derandomize=True)
@given(case=cases())
def test_no_race_when_some_chunks_are_empty(case: Case) -> None:
    assert races(case.schedule, separate, case.only) == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("workers", range(2, 9))
def test_reducing_in_place_races_on_every_topology(name: str, workers: int) -> None:
    assert races(build_schedule(name, workers), in_place)


def test_the_classic_race_of_a_ring_in_place() -> None:
    # Worker 1 still copies the result from worker 0 while worker 0 lays down its next gradient over it.
    found = races(build_schedule("ring", 2), in_place, steps=2)
    read, write = Access(1, "read", "result", 0, 0), Access(0, "write", "contribution", 0, 1)
    assert Race(0, read, write) in found or Race(0, write, read) in found


@pytest.mark.parametrize(
    ("name", "fewest"), [("parameter_server", 2), ("peer_to_peer", 3), ("ring", 4), ("tree", 5), ("hierarchical", 3)]
)
def test_sums_that_grow_in_the_only_copy_of_the_result_race(name: str, fewest: int) -> None:
    # The first add of the next step waits for one peer only, while another may still be reading the result that it
    # overwrites. From `fewest` workers on there is such another.
    racing = [workers for workers in range(1, 9) if races(build_schedule(name, workers), partial_in_result)]
    assert racing == list(range(fewest, 9))


@pytest.mark.parametrize("rest", [(Move(2, 1, 0, "add"),), (Move(0, 2, 1, "copy"), Move(2, 1, 0, "add"))])
def test_what_is_read_late_races_where_it_would_not_if_read_at_once(rest: tuple[Move, ...]) -> None:
    """Worker 0 adds to the sum that worker 1 has had, after an answer of worker 1. If more is added to the chunk, worker 1
    reads it only then: beside the addition, or after it, which is as wrong."""
    moves = Move(3, 0, 0, "add"), Move(0, 1, 0, "add"), Move(1, 0, 1, "copy"), Move(3, 0, 0, "add")
    plan = listed("answered early", 4, 0, (1, 1), tuple((move,) for move in moves))
    assert races(plan, steps=1) == []
    late = listed("read late", 4, 0, (1, 1), tuple((move,) for move in (*moves, *rest)))
    write, read = Access(0, "write", "partial", 0, 0), Access(1, "read", "partial", 0, 0)
    (race,) = races(late, steps=1)
    assert race in (Race(0, write, read), Race(0, read, write))


def test_a_worker_that_does_not_wait_for_its_result_races() -> None:
    push_only = listed("push only", 2, 1, (2,), ((Move(0, 2, 0, "add"), Move(1, 2, 0, "add")),))
    assert {race.late.region for race in races(push_only)} == {"contribution"}
