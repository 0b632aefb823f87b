"""Which worker hosts which shards: contiguous runs of nearly equal length. A pure function; no bit depends on it."""

from __future__ import annotations


def assign_shards(shards: int, workers: int) -> tuple[tuple[int, ...], ...]:
    """For each rank the shards it hosts: every shard once, sizes that differ by at most one, larger shares first.

    Raises ValueError when a worker would be left without a shard.
    """
    if not 1 <= workers <= shards:
        raise ValueError(f"{workers} workers cannot share {shards} shards: each hosts at least one")
    small, larger = divmod(shards, workers)
    starts = [rank * small + min(rank, larger) for rank in range(workers + 1)]
    return tuple(tuple(range(starts[rank], starts[rank + 1])) for rank in range(workers))
