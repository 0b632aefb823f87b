"""By which way a vote goes round, whatever the topology of the sum: up a tree to member 0 and down again, servers among them.

A vote is one short vector and its maximum is exact in any order, so neither bits nor bandwidth speak for the topology of the
sum. Through a ring of n members a vote takes 2 n - 2 turns one after the other, and up and down a tree 2 log n. Each member
sends its vote once and hands the outcome to its children, so all trees have as many messages as a ring.

Members that share memory vote among themselves first. Only one of each node tells another node, which saves wires.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from orchestrator.comm.topologies.schedule import Move, Schedule, require_positive
from orchestrator.comm.topologies.tree import Tree

ARITY = 4  # with latencies as long as a message takes to handle, 3 and 4 are fastest; up to five members it is a star


def vote_schedule(members: int, nodes: Sequence[int] = ()) -> Schedule:
    """All members contribute one chunk, servers too, and all get its maximum. nodes: by rank, equal for those that share
    memory; none: all do. Raises ValueError for a number of members below 1, or nodes of another number."""
    require_positive(members=members)
    if len(nodes) not in (0, members):
        raise ValueError(f"{len(nodes)} nodes are told for {members} members; tell one for each")
    return _built(tuple(nodes) or (0,) * members, ARITY)


@lru_cache(maxsize=4)  # the driver asks for the peers of each member of a generation
def _built(nodes: tuple[int, ...], arity: int) -> Schedule:
    beside: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        beside.setdefault(node, []).append(rank)
    return Schedule("vote", len(nodes), 0, (0,), _Vote(tuple(map(tuple, beside.values())), arity))


@dataclass(frozen=True)
class _Vote:
    """Implements `schedule.Pattern`. nodes: the ranks of each, of which the first one votes for all among nodes; arity: of the
    tree within a node, and of that among nodes."""

    nodes: tuple[tuple[int, ...], ...]
    arity: int

    def peers(self, rank: int) -> Collection[int]:
        parent = self._parent(rank)
        return [*self._children(rank), *([] if parent is None else [parent])]

    def moves(self, rank: int) -> Iterator[tuple[int, Move]]:
        """Votes of this node are awaited before those of others, and others are told first."""
        parent, children, depth = self._parent(rank), self._children(rank), self._depth(rank)
        for child in children:
            yield self._deepest - depth - 1, Move(child, rank, 0, "add")
        if parent is not None:
            yield self._deepest - depth, Move(rank, parent, 0, "add")
            yield self._deepest + depth - 1, Move(parent, rank, 0, "copy")
        for child in reversed(children):
            yield self._deepest + depth, Move(rank, child, 0, "copy")

    def _parent(self, rank: int) -> int | None:
        node, place = self._places[rank]
        if place:
            return self.nodes[node][self._within(node).parent(place)]
        return self.nodes[self._between.parent(node)][0] if node else None

    def _children(self, rank: int) -> list[int]:
        node, place = self._places[rank]
        here = [self.nodes[node][child] for child in self._within(node).children(place)]
        return here if place else here + [self.nodes[child][0] for child in self._between.children(node)]

    def _depth(self, rank: int) -> int:
        node, place = self._places[rank]
        return self._between.depth(node) + self._within(node).depth(place)

    @cached_property
    def _deepest(self) -> int:
        return max(self._depth(ranks[-1]) for ranks in self.nodes)

    @property
    def _between(self) -> Tree:
        return Tree(len(self.nodes), self.arity)

    def _within(self, node: int) -> Tree:
        return Tree(len(self.nodes[node]), self.arity)

    @cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        """rank -> its node and its place there."""
        return {rank: (node, place) for node, ranks in enumerate(self.nodes) for place, rank in enumerate(ranks)}
