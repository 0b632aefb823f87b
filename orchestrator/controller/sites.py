"""Which worker hosts which shards where some are pinned to sites: to workers of nodes that hold their bytes. Pure functions; of
the result only depends which sites are away.

The workers that may host a shard are given. Among them the shards are assigned so that no other deal has a smaller largest
share, nor a smaller second largest, and so on: an optimal semi-matching. It is found by moving shards along paths from a
worker that has more to one that has two or more less. Source: Harvey, Ladner, Lovasz and Tamir, "Semi-Matchings for Bipartite
Graphs and Load Balancing", 2003. It begins with what each has, so where that is balanced nothing moves, and a site's shards
stay where they are when another site loses a worker.
"""

from __future__ import annotations

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
    site_of = {shard: site for site, own in sites.items() for shard in own}
    everybody = range(len(offered))
    return [
        [each for each in everybody if shard not in site_of or site_of[shard] in offered[each]]
        for shard in range(shards)
    ]


def assign_at_sites(may: Sequence[Sequence[int]], held: Sequence[Collection[int]]) -> tuple[tuple[int, ...], ...]:
    """For each worker its shards. may: of each shard the workers that may host it; held: by worker, what it hosts now. A shard
    that nobody may host is assigned to nobody; a worker for whom there is none gets none."""
    owner: dict[int, int] = {}
    load = [0] * len(held)

    def give(shard: int, worker: int) -> None:
        owner[shard] = worker
        load[worker] += 1

    for worker, own in enumerate(held):
        for shard in sorted(own):
            if shard not in owner and shard < len(may) and worker in may[shard]:
                give(shard, worker)
    for shard, able in enumerate(may):
        if shard not in owner and able:
            give(shard, min(able, key=lambda worker: (load[worker], worker)))
    while path := _relief(may, owner, load):
        for shard, to in path:
            load[owner[shard]] -= 1
            give(shard, to)
    return tuple(tuple(shard for shard in range(len(may)) if owner.get(shard) == worker) for worker in range(len(held)))


def _relief(may: Sequence[Sequence[int]], owner: Mapping[int, int], load: Sequence[int]) -> list[tuple[int, int]]:
    """Shards, each with whom it moves to, by which one who has much comes to have one less, and one who has two or more less
    than that one more; empty where there is no such pair."""
    for most in sorted(range(len(load)), key=lambda worker: (-load[worker], worker)):
        came: dict[int, tuple[int, int]] = {}  # to this worker: by which shard, and from whom
        reached = [most]
        for worker in reached:  # grows
            for shard in sorted((each for each, by in owner.items() if by == worker), reverse=True):
                for to in may[shard]:
                    if to != most and to not in came:
                        came[to] = shard, worker
                        reached.append(to)
        least = min(reached, key=lambda worker: (load[worker], reached.index(worker)))
        if load[least] + 2 <= load[most]:
            return _path(came, most, least)
    return []


def _path(came: Mapping[int, tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    path = []
    while last != first:
        shard, before = came[last]
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
    for _ in range(workers - len(counts)):
        open_ = [site for site in counts if found[site] < counts[site]]
        if not open_:
            raise ValueError(f"{workers} workers for {sum(counts.values())} shards")
        found[max(open_, key=lambda site: (counts[site] / found[site], site))] += 1
    return found
