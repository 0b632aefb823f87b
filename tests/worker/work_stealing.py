"""The worker that computes each shard of a step, if idle workers claim the shards of others on their host. Pure.

A worker takes the shards that were assigned to it front to back, then the last free one of whoever has most left on its host,
until none is free. Front and back, because what is assigned is read ahead from the front (`data.loaders`).

Workers claim by the same rule, compiled (`worker.member.shared_queue`), and tests compare the two.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

Seconds = Callable[[int, int], float]  # that a worker takes for a shard


def last_of_most(free: Iterable[Sequence[int]], kept: int = 0) -> int | None:
    """The shard that an idle worker claims; None if there is none to be had. free: of each other worker of its host the
    shards that nobody has claimed, in order. kept: so many are left to each, which its loaders have read ahead: whoever took
    one would read it again."""
    most = max(free, key=len, default=())
    return most[-1] if len(most) > kept else None


def in_time(
    assigned: Sequence[Sequence[int]], nodes: Sequence[int], seconds: Seconds, kept: int = 0
) -> list[list[int]]:
    """The shards that each worker computes in a step that all begin together, in their order, in virtual time. assigned: by
    worker; nodes: by worker, equal where two are on one host; kept: as in `last_of_most`. The lower rank of two that are idle
    at the same moment claims first."""
    left = [list(shards) for shards in assigned]
    computed: list[list[int]] = [[] for _ in assigned]
    idle = [(0.0, worker) for worker in range(len(assigned))]
    while idle:
        now, worker = heapq.heappop(idle)
        shard = _taken(left, worker, nodes, kept)
        if shard is not None:
            computed[worker].append(shard)
            heapq.heappush(idle, (now + seconds(worker, shard), worker))
    return computed


def _taken(left: list[list[int]], worker: int, nodes: Sequence[int], kept: int) -> int | None:
    if left[worker]:
        return left[worker].pop(0)
    beside = [each for other, each in enumerate(left) if other != worker and nodes[other] == nodes[worker]]
    shard = last_of_most(beside, kept)
    if shard is not None:
        next(each for each in beside if shard in each).remove(shard)
    return shard
