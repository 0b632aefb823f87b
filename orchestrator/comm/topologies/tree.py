"""Tree: partial sums go up a k-ary tree to worker 0, results come down; chunks follow one another.

Latency grows with the logarithm of the workers; arity 1 is a chain, a large arity a star. Children of i are k i + 1 to
k i + k, as in a heap, so every rank can tell its place.

Source: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009). This
is their starting point, one pipelined tree: inner members are busier than leaves.

Neighbours of the tree are not placed on one node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from orchestrator.comm.topologies.schedule import Move, Schedule, require_positive

# With C chunks a tree of depth D takes 2 D + C - 1 rounds, each of 1 / C of the vector. At depth 2 that is the time of
# 4 vectors for C = 1, of 1.75 for 4 and of 1.38 for 8: four win most of what pipelining can. Each doubling also doubles
# the messages, and those are what a small model pays for.
CHUNKS = 4


def tree(
    workers: int, *, arity: Annotated[int, Field(ge=1, description="Children of a node of the tree.")] = 2
) -> Schedule:
    """Sums go up a tree to worker 0 and results come down: rounds grow with the logarithm of the workers.

    CHUNKS chunks, all owned by the root, worker 0.
    """
    require_positive(workers=workers, arity=arity)
    return Schedule("tree", workers, 0, (0,) * CHUNKS, Tree(workers, arity))


@dataclass(frozen=True)
class Tree:
    """Implements `schedule.Pattern`."""

    workers: int
    arity: int

    def peers(self, rank: int) -> Collection[int]:
        return [self.parent(rank), *self.children(rank)] if rank else self.children(rank)

    def moves(self, rank: int) -> Iterator[tuple[int, Move]]:
        return iter(sorted(self._by_chunk(rank), key=lambda numbered: numbered[0]))

    def _by_chunk(self, rank: int) -> Iterator[tuple[int, Move]]:
        """A level a round, and each chunk one round behind the one before it."""
        depth, deepest = self.depth(rank), self.depth(self.workers - 1)  # ranks go level by level
        below = [(child, depth + 1) for child in self.children(rank)]
        joined = [(rank, depth), *below] if rank else below
        for chunk in range(CHUNKS):
            for member, level in joined:
                parent = self.parent(member)
                yield chunk + deepest - level, Move(member, parent, chunk, "add")
                yield chunk + deepest + level - 1, Move(parent, member, chunk, "copy")

    def parent(self, member: int) -> int:
        return (member - 1) // self.arity

    def children(self, member: int) -> range:
        first = self.arity * member + 1
        return range(first, min(first + self.arity, self.workers))

    def depth(self, member: int) -> int:
        if self.arity == 1:
            return member
        depth = 0
        while member:
            member = self.parent(member)
            depth += 1
        return depth
