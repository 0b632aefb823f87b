"""The number of micro-batches that each worker computes, by how fast it has been seen to be. Pure functions; no bit depends
on them.

Shards of a step are alike, so a worker's part of it ends after its number of shards times its seconds for one, and the
largest of these ends is what a step waits for. Each shard goes to the worker that ends first with it. For alike jobs that is
longest processing time first, and finds the least possible end. Sources: Graham, "Bounds on Multiprocessing Timing
Anomalies", 1969; for different speeds Horowitz and Sahni, "Exact and Approximate Algorithms for Scheduling Nonidentical
Processors", 1976. Among the deals with that end, the one is taken that moves the fewest shards.

Workers of one group share what any of them was assigned within a step, so a group is one machine as fast as all of them
together.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

_ROUNDING: Final = 1e-9  # relative; an end plus this has room for the shares that it was computed from


@dataclass(frozen=True)
class Host:
    """A worker that takes part."""

    seconds: float  # for a micro-batch, above 0
    group: int  # workers with the same number share their shards
    held: frozenset[int] = frozenset()  # the shards that it hosts now


@dataclass(frozen=True)
class Pace:
    """The known speed of a worker."""

    lately: Sequence[float]  # its last reports of the seconds of a micro-batch
    speed: float  # as declared, in proportion to others'
    node: int  # on which it is

    @property
    def seconds(self) -> float:
        """The median of its reports, so that a single outlier does not count."""
        return statistics.median(self.lately)


def expected_seconds(paces: Sequence[Pace]) -> list[float] | None:
    """The seconds that a micro-batch will take each of them. A worker that has reported nothing is taken to be like those of
    its node, or like all, apart from its declared speed. None where nothing is known that tells them apart."""
    known = [pace for pace in paces if pace.lately]
    if not known:
        return [1 / pace.speed for pace in paces] if len({pace.speed for pace in paces}) > 1 else None

    of_node: dict[int, list[float]] = {}
    for pace in known:
        of_node.setdefault(pace.node, []).append(pace.seconds * pace.speed)
    usual = {node: statistics.median(each) for node, each in of_node.items()}
    everywhere = statistics.median(one for each in of_node.values() for one in each)
    return [pace.seconds if pace.lately else usual.get(pace.node, everywhere) / pace.speed for pace in paces]


def assign_by_speed(shards: int, hosts: Sequence[Host]) -> tuple[tuple[int, ...], ...]:
    """For each of them its shards, at least one.

    Raises ValueError when a worker would be left without a shard."""
    if not 1 <= len(hosts) <= shards:
        raise ValueError(f"{len(hosts)} workers cannot share {shards} shards: each hosts at least one")
    groups = _groups(hosts)
    held = [sum(len(hosts[place].held) for place in places) for places in groups]
    counts = share_out(shards, [_rate(hosts, places) for places in groups], held, [len(places) for places in groups])
    found = [0] * len(hosts)
    for count, places in zip(counts, groups, strict=True):
        own = [len(hosts[place].held) for place in places]
        for place, each in zip(places, share_out(count, [1.0] * len(places), own, [1] * len(places)), strict=True):
            found[place] = each
    return _keep(shards, found, [host.held for host in hosts])


def longest(hosts: Sequence[Host], assigned: Sequence[Collection[int]]) -> float:
    """Seconds until the last of them has computed what it was assigned."""
    groups = _groups(hosts)
    return max(sum(len(assigned[place]) for place in places) / _rate(hosts, places) for places in groups)


def share_out(jobs: int, rates: Sequence[float], held: Sequence[int], least: Sequence[int]) -> list[int]:
    """How many of `jobs` each takes, at least its `least`, so that the last ends first; among such divisions one in which the
    fewest are taken by who has less now.

    rates: of each, above 0; held: how many it has; the sum of `least` is at most `jobs`."""
    end = shortest_end(jobs, rates, least) * (1 + _ROUNDING)
    most = [max(each, int(end * rate)) for each, rate in zip(least, rates, strict=True)]
    counts = [max(few, min(has, many)) for few, has, many in zip(least, held, most, strict=True)]
    over = sum(counts) - jobs
    if over > 0:
        _take(counts, over, rates, least)
    if over < 0:
        _give(counts, -over, rates, most)
    return counts


def shortest_end(jobs: int, rates: Sequence[float], least: Sequence[int]) -> float:
    """The least possible end of the last, where each takes `least` at least."""
    counts = list(least)
    _give(counts, jobs - sum(counts), rates)
    return max(count / rate for count, rate in zip(counts, rates, strict=True))


def _give(counts: list[int], jobs: int, rates: Sequence[float], most: Sequence[int] | None = None) -> None:
    """So many more, each to who ends first with it, and has not the most that it may have."""
    queue = [((count + 1) / rates[i], i) for i, count in enumerate(counts) if most is None or count < most[i]]
    heapq.heapify(queue)
    for _ in range(jobs):
        _, i = queue[0]
        counts[i] += 1
        if most is None or counts[i] < most[i]:
            heapq.heapreplace(queue, ((counts[i] + 1) / rates[i], i))
        else:
            heapq.heappop(queue)


def _take(counts: list[int], jobs: int, rates: Sequence[float], least: Sequence[int]) -> None:
    """So many less, each from who ends last and has more than its least."""
    queue = [(-count / rates[i], i) for i, count in enumerate(counts) if count > least[i]]
    heapq.heapify(queue)
    for _ in range(jobs):
        _, i = queue[0]
        counts[i] -= 1
        if counts[i] > least[i]:
            heapq.heapreplace(queue, (-counts[i] / rates[i], i))
        else:
            heapq.heappop(queue)


def _keep(shards: int, counts: Sequence[int], held: Sequence[Collection[int]]) -> tuple[tuple[int, ...], ...]:
    """Each keeps of its own what it may, the lowest; what is left goes, in ascending order, to who lacks some."""
    shards_kept = [sorted(of_host)[:count] for of_host, count in zip(held, counts, strict=True)]
    free_shards = iter(sorted(set(range(shards)).difference(*shards_kept)))
    for of_host, count in zip(shards_kept, counts, strict=True):
        of_host += islice(free_shards, count - len(of_host))
    return tuple(tuple(sorted(of_host)) for of_host in shards_kept)


def _groups(hosts: Sequence[Host]) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for place, host in enumerate(hosts):
        found.setdefault(host.group, []).append(place)
    return list(found.values())


def _rate(hosts: Sequence[Host], places: Sequence[int]) -> float:
    """Micro-batches in a second."""
    return sum(1 / hosts[place].seconds for place in places)
