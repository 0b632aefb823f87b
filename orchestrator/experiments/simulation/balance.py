"""How the micro-batches of a step are divided among workers that are not equally fast, in virtual time. Pure.

dealt      by the controller's own function, from what a micro-batch takes each worker in the long run
claimed    within a step: a worker computes its own shards, front to back, and then claims the last free one of whoever on
           its host has most left; a claim costs nothing
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from orchestrator.controller.load_balancing import Host, assign_by_speed
from orchestrator.controller.shard_assignment import assign_shards


class AfterStealing(NamedTuple):
    """The step of workers that steal micro-batches from each other. computed: by each worker; ends: seconds at which each is
    done for this step."""

    computed: list[int]
    ends: list[float]


def assigned(shards: int, seconds: Sequence[float], hosts: Sequence[int], *, by_speed: bool, claims: bool) -> list[int]:
    """How many shards each worker hosts. seconds: of a micro-batch of each; hosts: on which each is."""
    if not by_speed or len(set(seconds)) == 1:
        return [len(own) for own in assign_shards(shards, len(seconds))]
    found = [
        Host(each, hosts[rank] if claims else rank, frozenset(own))
        for rank, (each, own) in enumerate(zip(seconds, assign_shards(shards, len(seconds)), strict=True))
    ]
    return [len(own) for own in assign_by_speed(shards, found)]


def after_stealing(
    hosted: Sequence[int], seconds: Sequence[float], begins: Sequence[float] | None = None
) -> AfterStealing:
    """The load of one host's workers after stealing. hosted: shards of each; seconds: of a micro-batch of each; begins: when
    each begins."""
    left, computed = list(hosted), [0] * len(hosted)
    ends = [0.0] * len(hosted) if begins is None else list(begins)
    free = [(begin, rank) for rank, begin in enumerate(ends)]
    heapq.heapify(free)
    for _ in range(sum(hosted)):
        now, rank = heapq.heappop(free)
        whose = rank if left[rank] else max(range(len(left)), key=left.__getitem__)
        left[whose] -= 1
        computed[rank] += 1
        ends[rank] = now + seconds[rank]
        heapq.heappush(free, (ends[rank], rank))
    return AfterStealing(computed, ends)


def with_work_stealing(
    hosted: npt.NDArray[np.int64],
    seconds: npt.NDArray[np.float64],
    begins: npt.NDArray[np.float64],
    hosts: Sequence[int],
) -> npt.NDArray[np.float64]:
    """[steps, workers] seconds until each worker has computed what is its own and what it claimed on its host. seconds, begins:
    [steps, workers], of a micro-batch, and how late each begins."""
    found = np.zeros_like(seconds)
    of_host: dict[int, list[int]] = {}
    for rank, host in enumerate(hosts):
        of_host.setdefault(host, []).append(rank)
    for ranks in of_host.values():
        own = hosted[ranks].tolist()
        before: tuple[list[float], list[float]] | None = None
        for step, (each, late) in enumerate(zip(seconds[:, ranks].tolist(), begins[:, ranks].tolist(), strict=True)):
            if (each, late) != before:  # without chance all steps are alike
                before, ends = (each, late), after_stealing(own, each, late).ends
            found[step, ranks] = ends
    return found
