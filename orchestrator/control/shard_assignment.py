"""Which worker hosts which shards: contiguous runs of nearly equal length, or by size. Pure; no bit depends on it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def assign_shards(shards: int, workers: int) -> tuple[tuple[int, ...], ...]:
    """For each rank the shards it hosts: every shard once, sizes that differ by at most one, larger shares first.

    Raises ValueError when a worker would be left without a shard.
    """
    if not 1 <= workers <= shards:
        raise ValueError(f"{workers} workers cannot share {shards} shards: each hosts at least one")
    small, larger = divmod(shards, workers)
    starts = [rank * small + min(rank, larger) for rank in range(workers + 1)]
    return tuple(tuple(range(starts[rank], starts[rank + 1])) for rank in range(workers))


def deal(sizes: Sequence[int], workers: int) -> tuple[tuple[int, ...], ...]:
    """For each rank the shards it computes, where they differ in size: the largest first, to whoever has least so far.

    The worker with most has at most 4/3 of the least that is possible. Every worker gets a shard where there are as many.
    Source: Graham, "Bounds on Multiprocessing Timing Anomalies" (1969), theorem 3.
    """
    loads = [(0, 0, rank) for rank in range(workers)]  # size, number, rank
    dealt: list[list[int]] = [[] for _ in range(workers)]
    for shard in sorted(range(len(sizes)), key=lambda each: (-sizes[each], each)):
        load, number, rank = heapq.heappop(loads)
        dealt[rank].append(shard)
        heapq.heappush(loads, (load + sizes[shard], number + 1, rank))
    return tuple(tuple(sorted(shards)) for shards in dealt)
