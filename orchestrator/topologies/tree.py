"""Tree: partial sums go up a k-ary tree to worker 0, results come down; chunks follow one another.

Latency grows with the logarithm of the workers; arity 1 is a chain, a large arity a star. Children of i are k i + 1 to
k i + k, as in a heap, so every rank can tell its place.

Source: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009). This
is their starting point, one pipelined tree: inner members are busier than leaves.

What it does not do: place neighbours of the tree on neighbouring hosts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from orchestrator.topologies.schedule import Move, Schedule, require_positive

# With C chunks a tree of depth D takes 2 D + C - 1 rounds, each of 1 / C of the vector. At depth 2 that is the time of
# 4 vectors for C = 1, of 1.75 for 4 and of 1.38 for 8: four win most of what pipelining can. Each doubling also doubles
# the messages, and those are what a small model pays for.
CHUNKS = 4


def tree(
    workers: int, *, arity: Annotated[int, Field(ge=1, description="Children of a node of the tree.")] = 2
) -> Schedule:
    """CHUNKS chunks, all owned by the root, worker 0."""
    require_positive(workers=workers, arity=arity)
    depths = _depths(workers, arity)
    rounds: list[list[Move]] = [[] for _ in range(2 * depths[-1] + CHUNKS - 1 if workers > 1 else 0)]
    for number, move in _moves(depths, arity):
        rounds[number].append(move)
    return Schedule("tree", workers, 0, (0,) * CHUNKS, tuple(map(tuple, rounds)))


def _moves(depths: list[int], arity: int) -> Iterator[tuple[int, Move]]:
    """Each move with its round: a level a round, and each chunk one round behind the one before it."""
    deepest = depths[-1]
    for chunk in range(CHUNKS):
        for member, depth in enumerate(depths[1:], start=1):
            parent = (member - 1) // arity
            yield chunk + deepest - depth, Move(member, parent, chunk, "add")
            yield chunk + deepest + depth - 1, Move(parent, member, chunk, "copy")


def _depths(workers: int, arity: int) -> list[int]:
    """The depth of each worker; ranks go level by level, so the last is deepest."""
    depths = [0]
    for member in range(1, workers):
        depths.append(depths[(member - 1) // arity] + 1)
    return depths
