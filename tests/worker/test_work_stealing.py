"""The computing worker of each shard if shards are claimed, in virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.controller.shard_assignment import assign_shards
from tests.worker.work_stealing import in_time, last_of_most


def finish(computed: list[list[int]], seconds: list[float]) -> float:
    return max(len(shards) * each for shards, each in zip(computed, seconds, strict=True))


def test_the_last_free_shard_of_whoever_has_most_left_is_taken() -> None:
    assert last_of_most([(1,), (4, 6, 7), (8, 9)]) == 7
    assert last_of_most([(), ()]) is last_of_most([]) is None


def test_what_loaders_have_read_ahead_is_left_to_its_worker() -> None:
    assert [last_of_most([(4, 6, 7)], kept) for kept in range(4)] == [7, 7, 7, None]


@pytest.mark.parametrize(("shards", "dealt", "claimed"), [(8, 6, 3), (16, 12, 6), (32, 24, 12)])
def test_one_of_four_at_a_third_of_the_speed(shards: int, dealt: int, claimed: int) -> None:
    """The figures of docs/cluster.md."""
    seconds, assigned = [3.0, 1.0, 1.0, 1.0], assign_shards(shards, 4)
    assert finish([list(each) for each in assigned], seconds) == dealt
    computed = in_time(assigned, [0] * 4, lambda worker, _: seconds[worker])
    assert finish(computed, seconds) == claimed


def test_half_of_sixteen_at_half_the_speed() -> None:
    seconds = [2.0, 1.0] * 8
    computed = in_time(assign_shards(64, 16), [0] * 16, lambda worker, _: seconds[worker])
    assert finish(computed, seconds) == 6


def test_nobody_claims_from_another_host() -> None:
    assert in_time([(0, 1, 2, 3), ()], [0, 1], lambda *_: 1.0) == [[0, 1, 2, 3], []]


@given(st.data())
def test_each_shard_is_computed_once_and_nobody_is_idle_while_one_is_free(data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, 5))
    shards = data.draw(st.integers(workers, 20))
    nodes = data.draw(st.lists(st.integers(0, 1), min_size=workers, max_size=workers))
    taken = {
        (worker, shard): data.draw(st.integers(1, 9), label=f"{worker}, {shard}")
        for worker in range(workers)
        for shard in range(shards)
    }
    dealt = assign_shards(shards, workers)
    computed = in_time(dealt, nodes, lambda worker, shard: float(taken[worker, shard]))
    assert sorted(shard for each in computed for shard in each) == list(range(shards))
    on = {shard: nodes[worker] for worker, each in enumerate(dealt) for shard in each}
    ends = [sum(taken[worker, shard] for shard in each) for worker, each in enumerate(computed)]
    for worker, each in enumerate(computed):
        assert all(on[shard] == nodes[worker] for shard in each)
        if each:  # its last shard began before anybody beside it was done
            began = ends[worker] - taken[worker, each[-1]]
            assert all(began <= end for other, end in enumerate(ends) if nodes[other] == nodes[worker])
