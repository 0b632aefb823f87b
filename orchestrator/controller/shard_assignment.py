"""Which worker hosts which stage and which of its shards. Pure functions; no bit depends on them.

A worker hosts one stage, which is fixed once it has been assigned, and a contiguous run of the shards of that stage. Stages
may have different numbers of workers: columns are ragged while workers are missing. If shards differ in size, each goes to
the worker that has least to do.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest

from orchestrator.comm.pipeline_schedules import Hosts


def assign_shards(shards: int, workers: int) -> tuple[tuple[int, ...], ...]:
    """For each rank the shards it hosts: every shard once, sizes that differ by at most one, larger shares first.

    Raises ValueError when a worker would be left without a shard.
    """
    if not 1 <= workers <= shards:
        raise ValueError(f"{workers} workers cannot share {shards} shards: each hosts at least one")
    small, larger = divmod(shards, workers)
    starts = [rank * small + min(rank, larger) for rank in range(workers + 1)]
    return tuple(tuple(range(starts[rank], starts[rank + 1])) for rank in range(workers))


def assign_by_size(sizes: Sequence[int], workers: int) -> tuple[tuple[int, ...], ...]:
    """For each rank the shards it computes, where they differ in size: the largest first, to whoever has least so far.

    The worker with most has at most 4/3 of the least that is possible. Every worker gets a shard where there are as many.
    Source: Graham, "Bounds on Multiprocessing Timing Anomalies" (1969), theorem 3.
    """
    loads = [(0, 0, rank) for rank in range(workers)]  # size, number, rank
    assigned: list[list[int]] = [[] for _ in range(workers)]
    for shard in sorted(range(len(sizes)), key=lambda each: (-sizes[each], each)):
        load, number, rank = heapq.heappop(loads)
        assigned[rank].append(shard)
        heapq.heappush(loads, (load + sizes[shard], number + 1, rank))
    return tuple(tuple(sorted(shards)) for shards in assigned)


def assign_stages(fixed: Sequence[int | None], stages: int, leaves: Sequence[bool] = ()) -> tuple[int, ...]:
    """For each worker its stage: the one that is fixed, or else, in their order, the lowest of those that the fewest host.

    fixed: by worker, None for a newcomer. leaves: by worker, whether its node goes away; a newcomer first replaces those."""
    here = Counter(stage for stage in fixed if stage is not None)
    stays = Counter(
        stage for stage, goes in zip_longest(fixed, leaves, fillvalue=False) if stage is not None and not goes
    )
    fewest = [(stays[stage], here[stage], stage) for stage in range(stages)]
    heapq.heapify(fewest)
    assigned: list[int] = []
    for stage, goes in zip_longest(fixed, leaves, fillvalue=False):
        if stage is None:
            staying, hosting, stage = fewest[0]
            heapq.heapreplace(fewest, (staying + (not goes), hosting + 1, stage))
        assigned.append(stage)
    return tuple(assigned)


def assign_columns(shards: int, stage_of: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """For each rank the shards that it hosts of its stage: each stage's, assigned among its ranks in ascending order.

    stage_of: by rank. Raises ValueError as `assign_shards`."""
    assigned = {stage: iter(assign_shards(shards, number)) for stage, number in Counter(stage_of).items()}
    return tuple(next(assigned[stage]) for stage in stage_of)


def hosts_of(stage_of: Sequence[int], shards_of: Sequence[Sequence[int]]) -> Hosts:
    """hosts[stage][shard] = rank. stage_of, shards_of: by rank; a stage that nobody hosts has no shards."""
    found: list[dict[int, int]] = [{} for _ in range(max(stage_of, default=-1) + 1)]
    for rank, (stage, hosted) in enumerate(zip(stage_of, shards_of, strict=True)):
        found[stage].update(dict.fromkeys(hosted, rank))
    return tuple(tuple(ranks[shard] for shard in sorted(ranks)) for ranks in found)
