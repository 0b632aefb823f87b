"""Hosts of pipelines to try: columns of equal length, and ragged ones."""

from __future__ import annotations

from hypothesis import strategies as st

from orchestrator.comm.pipeline_schedules import PIPELINING, Hosts

NAMES = sorted(PIPELINING)


def columns(stages: int, columns: int, shards: int) -> Hosts:
    """Rank = column * stages + stage; each column has a contiguous share of the shards."""
    share = [shard * columns // shards for shard in range(shards)]
    return tuple(tuple(share[shard] * stages + stage for shard in range(shards)) for stage in range(stages))


@st.composite
def ragged(draw: st.DrawFn) -> Hosts:
    """Stages with members of their own numbers, whose shards are dealt at random; ranks in any order."""
    shards = draw(st.integers(1, 12))
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    ranks = iter(draw(st.permutations(range(sum(sizes)))))
    groups = [[next(ranks) for _ in range(size)] for size in sizes]
    return tuple(tuple(draw(st.sampled_from(group)) for _ in range(shards)) for group in groups)
