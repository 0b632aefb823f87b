"""A topology is asked member by member: it answers as the whole table of moves would, and for what that member does alone.

Here every topology is written down once more, round by round, as it is explained in its file. One that is made by `listed` is
such a table already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Any

import pytest

from orchestrator.comm.topologies import Move, Schedule, build_schedule, program
from orchestrator.comm.topologies.laws import disagreement
from orchestrator.comm.topologies.listed import Listed, Rounds, listed
from orchestrator.comm.topologies.schedule import Pattern
from tests.comm.topologies.cases import NAMES, on_nodes, variants


def ring(workers: int) -> Rounds:
    add = (
        tuple(Move(w, (w + 1) % workers, (w - 1 - j) % workers, "add") for w in range(workers))
        for j in range(workers - 1)
    )
    copy = (
        tuple(Move(w, (w + 1) % workers, (w - j) % workers, "copy") for w in range(workers)) for j in range(workers - 1)
    )
    return (*add, *copy)


def tree(workers: int, arity: int) -> Rounds:
    depths = [0]
    for member in range(1, workers):
        depths.append(depths[(member - 1) // arity] + 1)
    rounds: list[list[Move]] = [[] for _ in range(2 * depths[-1] + 3 if workers > 1 else 0)]
    for chunk in range(4):
        for member, depth in enumerate(depths[1:], start=1):
            parent = (member - 1) // arity
            rounds[chunk + depths[-1] - depth].append(Move(member, parent, chunk, "add"))
            rounds[chunk + depths[-1] + depth - 1].append(Move(parent, member, chunk, "copy"))
    return tuple(map(tuple, rounds))


def parameter_server(workers: int, servers: int) -> Rounds:
    pairs = [(worker, (worker + turn) % servers) for turn in range(servers) for worker in range(workers)]
    push = tuple(Move(worker, workers + server, server, "add") for worker, server in pairs)
    return push, tuple(Move(workers + server, worker, server, "copy") for worker, server in pairs)


def peer_to_peer(workers: int) -> Rounds:
    pairs = [(worker, (worker + turn) % workers) for turn in range(1, workers) for worker in range(workers)]
    scatter = tuple(Move(worker, owner, owner, "add") for worker, owner in pairs)
    return (scatter, tuple(Move(worker, peer, worker, "copy") for worker, peer in pairs)) if pairs else ()


def hierarchical(nodes: Sequence[Sequence[int]], between: str) -> Rounds:
    """The rounds of a hierarchy, one group of chunks after the other: up to its root, the last node to be reached, and
    back."""
    largest, number = max(map(len, nodes)), len(nodes)
    rounds: list[list[Move]] = [[] for _ in range(4 * number)]

    def owner(node: int, chunk: int) -> int:
        return nodes[node][chunk % len(nodes[node])]

    for chunk in range(number * largest):
        root = chunk // largest
        up, down, depths = {}, {}, {root: (0, 0)}
        for place in range(1, number):  # a chain against and with the order of nodes, or a heap for both
            if between == "ring":
                up[(root - place) % number] = (root - place + 1) % number, place
                down[(root + place) % number] = (root + place - 1) % number, place
            else:
                depth = (place + 1).bit_length() - 1
                up[(root + place) % number] = down[(root + place) % number] = (root + (place - 1) // 2) % number, depth
        depths |= {node: (up[node][1], down[node][1]) for node in up}
        turn = max(depth for depth, _ in depths.values())
        for node, (above, below) in depths.items():
            if node != root:
                rounds[turn - above + 1].append(Move(owner(node, chunk), owner(up[node][0], chunk), chunk, "add"))
                rounds[turn + below].append(Move(owner(down[node][0], chunk), owner(node, chunk), chunk, "copy"))
            for member in set(nodes[node]) - {owner(node, chunk)}:
                rounds[turn - above].append(Move(member, owner(node, chunk), chunk, "add"))
                rounds[turn + below + 1].append(Move(owner(node, chunk), member, chunk, "copy"))
    used = [number for number, moves in enumerate(rounds) if moves]
    return tuple(map(tuple, rounds[used[0] : used[-1] + 1])) if used else ()


TABLES: dict[str, Callable[..., Rounds]] = {
    "ring": ring,
    "tree": tree,
    "parameter_server": parameter_server,
    "peer_to_peer": peer_to_peer,
    "hierarchical": hierarchical,
}
BY_RANK = [name for name in NAMES if not isinstance(build_schedule(name, 2).pattern, Listed)]


@pytest.mark.parametrize("name", BY_RANK)
@pytest.mark.parametrize("workers", range(1, 10))
def test_each_member_does_what_the_table_of_all_moves_says(name: str, workers: int) -> None:
    numbers = (1, 2, 3, 5, 9)
    for schedule in variants(name, workers, numbers):
        pattern: Any = schedule.pattern  # its fields are what the table takes, workers or nodes first
        table = TABLES[name](*(getattr(pattern, each.name) for each in fields(pattern)))
        whole = listed(name, workers, schedule.servers, schedule.owners, table)
        assert list(map(Counter, schedule.rounds)) == list(map(Counter, table))
        assert schedule.links() == whole.links()
        for rank in range(schedule.members):
            assert Counter(schedule.moves_of(rank)) == Counter(whole.moves_of(rank))
            # A message between nodes is sent first and awaited last, which a list of rounds cannot say.
            for only in (None, [0], range(0, schedule.chunks, 2)) if name != "hierarchical" else ():
                assert program(schedule, rank, only) == program(whole, rank, only)


@pytest.mark.parametrize("name", NAMES)
def test_both_ends_of_a_move_tell_of_it_and_nobody_else(name: str) -> None:
    for schedule in chain.from_iterable(variants(name, workers) for workers in (1, 2, 3, 8, 17)):
        assert disagreement(schedule) is None


class Counting:
    """A pattern that counts the moves which it was asked for."""

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.count = 0

    def peers(self, rank: int) -> Collection[int]:
        return self.pattern.peers(rank)

    def moves(self, rank: int) -> Iterator[tuple[int, Move]]:
        for numbered in self.pattern.moves(rank):
            self.count += 1
            yield numbered


def counted(schedule: Schedule) -> tuple[Schedule, Counting]:
    counting = Counting(schedule.pattern)
    return replace(schedule, pattern=counting), counting


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "workers", "options", "rank", "own"),
    [
        ("ring", 10_000, {}, 4_321, 4 * 9_999),
        ("tree", 100_000, {}, 0, 2 * 2 * 4),
        ("tree", 100_000, {}, 7, 3 * 2 * 4),
        ("tree", 100_000, {}, 99_999, 2 * 4),
        ("parameter_server", 100_000, {"servers": 10}, 7, 2 * 10),
        ("parameter_server", 10_000, {"servers": 10}, 10_003, 2 * 10_000),
        ("peer_to_peer", 10_000, {}, 9_999, 4 * 9_999),
        ("hierarchical", 10_000, {"nodes": on_nodes(10_000, 1_250)}, 4_321, 4 * 9_999),
        ("hierarchical", 10_000, {"nodes": on_nodes(10_000, 100), "between": "tree"}, 4_321, 4 * 9_999),
    ],
)
def test_a_member_costs_its_own_moves_and_no_other(
    name: str, workers: int, options: dict[str, Any], rank: int, own: int
) -> None:
    schedule, counting = counted(build_schedule(name, workers, **options))
    schedule.peers_of(rank)
    assert counting.count == 0
    actions = program(schedule, rank)
    assert counting.count == own
    sent_or_received = [action for action in actions if hasattr(action, "peer")]
    assert len(sent_or_received) == own


@pytest.mark.parametrize("rank", [-1, 3])
def test_nobody_else_has_moves_or_peers(rank: int) -> None:
    schedule = build_schedule("ring", 3)
    with pytest.raises(ValueError, match=rf"no member {rank} in this schedule; members are 0 to 2"):
        list(schedule.moves_of(rank))
    with pytest.raises(ValueError, match=rf"no member {rank} in this schedule; members are 0 to 2"):
        schedule.peers_of(rank)
