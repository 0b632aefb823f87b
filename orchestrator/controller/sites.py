"""Which worker hosts which shards where some are pinned to sites: to workers of nodes that hold their bytes. Pure functions; of
the result only depends which sites are away.

The workers that may host a shard are given. Among them the shards are assigned so that no other deal has a smaller largest
share, nor a smaller second largest, and so on: an optimal semi-matching. It is found by moving shards along paths from a
worker that has more to one that has two or more less. Source: Harvey, Ladner, Lovasz and Tamir, "Semi-Matchings for Bipartite
Graphs and Load Balancing", 2003. It begins with what each has, so where that is balanced nothing moves, and a site's shards
stay where they are when another site loses a worker.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence

Sites = Mapping[str, Sequence[int]]  # the shards of each


def away(sites: Sites, offered: Sequence[Collection[str]]) -> list[str]:
    """The sites of none of these workers. offered: of each, the sites of its node."""
    here = {site for each in offered for site in each}
    return sorted(site for site, shards in sites.items() if shards and site not in here)


def shards_of(sites: Sites, those: Collection[str]) -> tuple[int, ...]:
    return tuple(sorted(shard for site in those for shard in sites[site]))


def hosts(shards: int, sites: Sites, offered: Sequence[Collection[str]]) -> list[list[int]]:
    """The workers, by their place in `offered`, that may host each shard: any, if it is of no site."""
    at: dict[str, list[int]] = {site: [] for site in sites}
    for place, offers in enumerate(offered):
        for site in {*offers} & at.keys():
            at[site].append(place)
    site_of = {shard: site for site, own in sites.items() for shard in own}
    everybody = list(range(len(offered)))
    return [at[site_of[shard]] if shard in site_of else everybody for shard in range(shards)]


def assign_at_sites(may: Sequence[Sequence[int]], held: Sequence[Collection[int]]) -> tuple[tuple[int, ...], ...]:
    """For each worker its shards. may: of each shard the workers that may host it; held: by worker, what it hosts now. A shard
    that nobody may host is assigned to nobody; a worker for whom there is none gets none."""
    owner: dict[int, int] = {}
    load = [0] * len(held)

    def give(shard: int, worker: int) -> None:
        owner[shard] = worker
        load[worker] += 1

    able_for = {id(able): frozenset(able) for able in may}  # shards of one site share their workers
    for worker, own in enumerate(held):
        for shard in sorted(own):
            if shard not in owner and shard < len(may) and worker in able_for[id(may[shard])]:
                give(shard, worker)
    queues: dict[int, list[tuple[int, int]]] = {}  # of those who are able, with a load that may be greater by now
    for shard, able in enumerate(may):
        if shard not in owner and able:
            if id(able) not in queues:
                heapq.heapify(queues.setdefault(id(able), [(load[worker], worker) for worker in able]))
            give(shard, _least(queues[id(able)], load))
    while path := _relief(may, owner, load):
        for shard, to in path:
            load[owner[shard]] -= 1
            give(shard, to)
    return tuple(map(tuple, _owned(owner, len(held))))


def _least(queue: list[tuple[int, int]], load: Sequence[int]) -> int:
    """The worker with the least load, the first of several. queue: a heap of loads, none greater than it is now."""
    while queue[0][0] != load[worker := queue[0][1]]:
        heapq.heapreplace(queue, (load[worker], worker))
    return worker


def _owned(owner: Mapping[int, int], workers: int) -> list[list[int]]:
    """By worker its shards, in ascending order."""
    found: list[list[int]] = [[] for _ in range(workers)]
    for shard in sorted(owner):
        found[owner[shard]].append(shard)
    return found


def _relief(may: Sequence[Sequence[int]], owner: Mapping[int, int], load: Sequence[int]) -> list[tuple[int, int]]:
    """A chain of moves, as (shard, worker that gets it), that takes one shard from the busiest worker possible and gives one to
    a worker with at least two fewer. Empty where there is no such pair."""
    owned = _owned(owner, len(load))
    lightest = min(load, default=0)
    for busiest in sorted(range(len(load)), key=lambda worker: (-load[worker], worker)):
        if load[busiest] < lightest + 2:
            break
        reached_by = _reached(may, owned, busiest)
        idlest = min([busiest, *reached_by], key=load.__getitem__)  # the first of several
        if load[idlest] + 2 <= load[busiest]:
            return _path(reached_by, busiest, idlest)
    return []


def _reached(may: Sequence[Sequence[int]], owned: Sequence[Sequence[int]], first: int) -> dict[int, tuple[int, int]]:
    """The workers that get a shard if some pass one on, beginning with the first: by which shard, and from whom. The nearest
    come first."""
    found: dict[int, tuple[int, int]] = {}
    reached = [first]
    seen_sites: set[int] = set()  # workers of a site that were reached through another shard of it
    for worker in reached:  # grows
        for shard in reversed(owned[worker]):
            new = (
                [to for to in may[shard] if to != first and to not in found] if id(may[shard]) not in seen_sites else []
            )
            found |= dict.fromkeys(new, (shard, worker))
            reached += new
            seen_sites.add(id(may[shard]))
    return found


def _path(reached_by: Mapping[int, tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    path = []
    while last != first:
        shard, before = reached_by[last]
        path.append((shard, last))
        last = before
    return path


def workers_at(sites: Sites, workers: int, shards: int) -> dict[str, int]:
    """How many of the workers to start at each site, at "" of those that may be anywhere: one at least, at most as many as
    shards, and else in proportion to these. Raises ValueError where there are fewer workers than sites.

    Shards of no site need no worker of their own where there are not enough."""
    counts = {site: len(own) for site, own in sites.items() if own}
    free = shards - sum(counts.values())
    if workers < len(counts):
        raise ValueError(f"{workers} workers for {len(counts)} sites")
    if free and workers > len(counts):
        counts[""] = free
    found = dict.fromkeys(counts, 1)
    if workers > sum(counts.values()):
        raise ValueError(f"{workers} workers for {sum(counts.values())} shards")
    last = {site: -place for place, site in enumerate(sorted(counts))}  # of equal ones the last gets a worker first
    queue = [(-float(count), last[site], site) for site, count in counts.items()]
    heapq.heapify(queue)
    for _ in range(workers - len(counts)):
        _, _, site = queue[0]
        found[site] += 1
        heapq.heapreplace(queue, (-counts[site] / found[site], last[site], site))
    return found
