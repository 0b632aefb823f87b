"""Hierarchical: each node adds up within itself, nodes exchange sums, and each spreads the results.

A wire between two nodes carries what their members together have, and not what each of them has: with H nodes a node sends 2
(H - 1) / H of the vector in all, however many workers it has. The work is divided by chunk: on every node each chunk has an
owner of its own, which adds up the node's contributions to it, so that all workers add. The owners of one chunk pass its sums
from node to node, in a ring or up a tree. The last one makes the result, which takes the way back. While one group of chunks
is between nodes, the next one is added up within them.

A ring of nodes sends each sum and each result once over each wire but one, and a result has gone through all nodes. A tree
has a depth of log2 (H), and each group of chunks has another node for its root, so that all wires carry alike; for that more
nodes are connected.

Sources: Cho, Finkler, Kung and Hunter, "BlueConnect: decomposing all-reduce for deep learning on heterogeneous network
hierarchy" (2019), for chunks with an owner on every level; Sanders, Speck and Traeff (see `tree.py`), for trees with
several roots.

It does not ask how fast a wire is, and knows no racks of nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Annotated, Literal

from pydantic import Field

from orchestrator.comm.topologies.schedule import Move, Schedule, require_positive
from orchestrator.comm.topologies.tree import Tree

Between = Literal["ring", "tree"]


def hierarchical(
    workers: int,
    *,
    nodes: Sequence[int] = (),
    between: Annotated[Between, Field(description="How the owners of a chunk are connected between nodes.")] = "ring",
) -> Schedule:
    """Each node adds up within itself, and only sums travel between nodes: the fewest bytes between machines.

    As many chunks for each node as the largest one has workers. nodes: by rank, equal for those of one node; none: all are.
    On its node worker i of k adds up the chunks i, i + k, and so on. With as many workers on each, worker w owns chunk w.
    """
    require_positive(workers=workers)
    if len(nodes) not in (0, workers):
        raise ValueError(f"{len(nodes)} nodes are told for {workers} workers; tell one for each")
    members: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes or (0,) * workers):
        members.setdefault(node, []).append(rank)
    pattern = _Hierarchical(tuple(map(tuple, members.values())), between)
    return Schedule("hierarchical", workers, 0, pattern.owners, pattern)


@dataclass(frozen=True)
class _Way:
    """How a chunk goes between nodes, to or from the one that is its root. clockwise: from the root on they follow one another
    in their order, or against it."""

    tree: Tree
    clockwise: bool

    def depth(self, node: int, root: int) -> int:
        return self.tree.depth(self._turned(node, root))

    def parent(self, node: int, root: int) -> int:
        return self._turned(self.tree.parent(self._turned(node, root)), root, back=True)

    def children(self, node: int, root: int) -> list[int]:
        return [self._turned(child, root, back=True) for child in self.tree.children(self._turned(node, root))]

    def _turned(self, number: int, root: int, *, back: bool = False) -> int:
        """The place of a node in the tree, whose place 0 is the root's; back: the node of a place."""
        if not self.clockwise:
            return (root - number) % self.tree.workers
        return (number + root if back else number - root) % self.tree.workers


@dataclass(frozen=True)
class _Hierarchical:
    """Implements `schedule.Pattern`. nodes: the ranks of each.

    Nodes at the deepest level add up within themselves first, and others while the sums of those below are on their way. A
    message for another node is sent before those within the node, and one from another node is awaited after them.
    """

    nodes: tuple[tuple[int, ...], ...]
    between: Between

    def peers(self, rank: int) -> Collection[int]:
        node, _ = self._places[rank]
        return {*self.nodes[node], *(peer for chunk in self._owned(rank) for peer in self._beyond(rank, chunk))} - {
            rank
        }

    def moves(self, rank: int) -> Iterator[tuple[int, Move]]:
        between = [numbered for chunk in self._owned(rank) for numbered in self._between(rank, chunk)]
        leaving = (numbered for numbered in between if numbered[1].source == rank)
        coming = (numbered for numbered in between if numbered[1].target == rank)
        return iter(sorted(chain(leaving, self._within(rank), coming), key=lambda numbered: numbered[0]))

    @cached_property
    def owners(self) -> tuple[int, ...]:
        return tuple(self._owner(chunk, self._root(chunk)) for chunk in range(self._chunks))

    def _within(self, rank: int) -> Iterator[tuple[int, Move]]:
        """By distance, so that at each turn every worker of the node sends one message and gets one."""
        node, place = self._places[rank]
        here = self.nodes[node]
        for turn in range(1, len(here)):
            after, before = here[(place + turn) % len(here)], here[(place - turn) % len(here)]
            for chunk in self._owned(after):
                yield self._added(node, chunk), Move(rank, after, chunk, "add")
                yield self._result_round(node, chunk) + 1, Move(after, rank, chunk, "copy")
            for chunk in self._owned(rank):
                yield self._added(node, chunk), Move(before, rank, chunk, "add")
                yield self._result_round(node, chunk) + 1, Move(rank, before, chunk, "copy")

    def _between(self, rank: int, chunk: int) -> Iterator[tuple[int, Move]]:
        """Sums to the root of a chunk and its result from there, through its owner on this node."""
        node, root = self._places[rank][0], self._root(chunk)
        up, down = self._ways
        for child in up.children(node, root):
            yield self._added(node, chunk), Move(self._owner(chunk, child), rank, chunk, "add")
        if node != root:
            yield self._added(node, chunk) + 1, Move(rank, self._owner(chunk, up.parent(node, root)), chunk, "add")
            yield (
                self._result_round(node, chunk),
                Move(self._owner(chunk, down.parent(node, root)), rank, chunk, "copy"),
            )
        for child in down.children(node, root):
            yield self._result_round(node, chunk) + 1, Move(rank, self._owner(chunk, child), chunk, "copy")

    def _beyond(self, rank: int, chunk: int) -> Iterator[int]:
        """The owners of a chunk on the nodes that this one is next to."""
        node, root = self._places[rank][0], self._root(chunk)
        for way in self._ways:
            near = way.children(node, root) if node == root else [way.parent(node, root), *way.children(node, root)]
            yield from (self._owner(chunk, other) for other in near)

    def _added(self, node: int, chunk: int) -> int:
        """The round in which all of a node's contributions to a chunk, and the sums from the nodes below, are added up."""
        return self._turn - self._ways[0].depth(node, self._root(chunk))

    def _result_round(self, node: int, chunk: int) -> int:
        """The round in which the chunk's owner on a node has its result: at the root that of the last add."""
        return self._turn + self._ways[1].depth(node, self._root(chunk))

    def _owned(self, rank: int) -> range:
        """The chunks that a worker adds up for its node."""
        node, place = self._places[rank]
        return range(place, self._chunks, len(self.nodes[node]))

    def _owner(self, chunk: int, node: int) -> int:
        return self.nodes[node][chunk % len(self.nodes[node])]

    def _root(self, chunk: int) -> int:
        return chunk // self._largest

    @cached_property
    def _ways(self) -> tuple[_Way, _Way]:
        """The ways of sums and of results: round a ring both go the same way, and in a tree up and down."""
        tree = Tree(len(self.nodes), 1 if self.between == "ring" else 2)
        return _Way(tree, clockwise=self.between == "tree"), _Way(tree, clockwise=True)

    @cached_property
    def _turn(self) -> int:
        """The round of the last adds; where each node has one worker, none are added up before the first are sent."""
        deepest = self._ways[0].tree.depth(len(self.nodes) - 1)
        return deepest if self._largest > 1 else deepest - 1

    @cached_property
    def _largest(self) -> int:
        return max(map(len, self.nodes))

    @property
    def _chunks(self) -> int:
        return len(self.nodes) * self._largest

    @cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        """rank -> its node and its place there."""
        return {rank: (node, place) for node, ranks in enumerate(self.nodes) for place, rank in enumerate(ranks)}
