"""Every shard at one worker, none without, as evenly as it goes; by size within the bound of the literature."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.control.shard_assignment import assign_shards, deal


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
    dealt = deal(sizes, workers)
    assert sorted(shard for own in dealt for shard in own) == list(range(len(sizes)))
    assert all(own == tuple(sorted(own)) and own for own in dealt)
    loads = sorted(sum(sizes[shard] for shard in own) for own in dealt)
    # Whoever has most got its last shard when nobody had less, so that the others have no shard less on average.
    assert loads[-1] <= sum(sizes) / workers + (1 - 1 / workers) * max(sizes)
    assert loads[-1] - loads[0] <= max(sizes)


def test_some_deals() -> None:
    assert deal([1, 1, 5, 2, 3], 2) == ((0, 2), (1, 3, 4))
    assert deal([0, 0, 0], 3) == ((0,), (1,), (2,))
    assert deal([7, 7, 7, 7], 2) == ((0, 2), (1, 3))
