"""Every shard at one worker of each stage, none without, as evenly as it goes; by size within the bound of the literature;
a stage that is fixed stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.controller.shard_assignment import (
    assign_by_size,
    assign_columns,
    assign_shards,
    assign_stages,
    hosts_of,
)


@given(st.integers(1, 300), st.data())
def test_shards_are_shared_out(shards: int, data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, shards))
    hosted = assign_shards(shards, workers)
    assert len(hosted) == workers
    assert [shard for own in hosted for shard in own] == list(range(shards))  # contiguous runs, in order of rank
    lengths = [len(own) for own in hosted]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)
    assert min(lengths) >= 1


def test_some_placements() -> None:
    assert assign_shards(5, 3) == ((0, 1), (2, 3), (4,))
    assert assign_shards(4, 1) == ((0, 1, 2, 3),)
    assert assign_shards(1, 1) == ((0,),)


@pytest.mark.parametrize(("shards", "workers"), [(3, 4), (0, 1), (3, 0), (3, -1), (0, 0)])
def test_a_worker_without_a_shard_is_refused(shards: int, workers: int) -> None:
    with pytest.raises(ValueError, match=f"{workers} workers cannot share {shards} shards"):
        assign_shards(shards, workers)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.data())
def test_shards_are_dealt_by_size(sizes: list[int], data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, len(sizes)))
    dealt = assign_by_size(sizes, workers)
    assert sorted(shard for own in dealt for shard in own) == list(range(len(sizes)))
    assert all(own == tuple(sorted(own)) and own for own in dealt)
    loads = sorted(sum(sizes[shard] for shard in own) for own in dealt)
    # The worker with most got its last shard when nobody had less, so that the others have no shard less on average.
    assert loads[-1] <= sum(sizes) / workers + (1 - 1 / workers) * max(sizes)
    assert loads[-1] - loads[0] <= max(sizes)


def test_some_deals() -> None:
    assert assign_by_size([1, 1, 5, 2, 3], 2) == ((0, 2), (1, 3, 4))
    assert assign_by_size([0, 0, 0], 3) == ((0,), (1,), (2,))
    assert assign_by_size([7, 7, 7, 7], 2) == ((0, 2), (1, 3))


@given(st.integers(1, 5), st.data())
def test_a_stage_is_fixed_and_new_workers_go_where_it_is_thinnest(stages: int, data: st.DataObject) -> None:
    fixed = data.draw(st.lists(st.none() | st.integers(0, stages - 1), min_size=stages, max_size=12))
    found = assign_stages(fixed, stages)
    assert all(before in (None, stage) for before, stage in zip(fixed, found, strict=True))
    sizes, before = [found.count(stage) for stage in range(stages)], [fixed.count(stage) for stage in range(stages)]
    grown = [size for size, least in zip(sizes, before, strict=True) if size > least]
    assert max(grown, default=0) <= min(sizes) + 1  # none has grown while another one was thinner


@given(st.integers(1, 20), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_each_stage_deals_all_shards(shards: int, sizes: list[int], data: st.DataObject) -> None:
    sizes = [min(size, shards) for size in sizes]
    stage_of = data.draw(st.permutations([stage for stage, size in enumerate(sizes) for _ in range(size)]))
    shards_of = assign_columns(shards, stage_of)
    hosts = hosts_of(stage_of, shards_of)
    assert [len(ranks) for ranks in hosts] == [shards] * len(sizes)
    for stage, ranks in enumerate(hosts):
        assert {stage_of[rank] for rank in ranks} == {stage}
        assert len(set(ranks)) == sizes[stage]
    for rank, stage in enumerate(stage_of):
        assert shards_of[rank] == tuple(shard for shard in range(shards) if hosts[stage][shard] == rank)
    assert assign_columns(shards, [0]) == assign_shards(shards, 1)


def test_some_stages() -> None:
    assert assign_stages([None] * 5, 2) == (0, 1, 0, 1, 0)
    assert assign_stages([0, 1, 0, None], 2) == (0, 1, 0, 1)
    assert assign_stages([1, 1, None], 2) == (1, 1, 0)
    assert assign_stages([0, 1, None], 2, [False, True, False]) == (0, 1, 1)  # beside the one that leaves
    assert assign_columns(4, (0, 1, 0)) == ((0, 1), (0, 1, 2, 3), (2, 3))
    assert hosts_of((0, 1, 0), assign_columns(4, (0, 1, 0))) == ((0, 0, 2, 2), (1, 1, 1, 1))
    with pytest.raises(ValueError, match="2 workers cannot share 1 shards"):
        assign_columns(1, (0, 0))
