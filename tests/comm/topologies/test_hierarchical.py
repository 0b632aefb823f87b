"""The traffic between nodes: a hierarchy sends what a node has once, a ring of ranks by node crosses each wire once.

Not here: the laws that it shares with all topologies; in them it is one of the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.comm.topologies import Add, Schedule, Send, build_schedule, program
from orchestrator.comm.topologies.laws import broken
from orchestrator.comm.topologies.routes import Routes

MIXTURES = st.lists(st.integers(0, 4), min_size=1, max_size=12)
BETWEEN = st.sampled_from(["ring", "tree"])


def crossings(schedule: Schedule, nodes: Sequence[int]) -> dict[tuple[int, int], Fraction]:
    """By pair of nodes, how much goes from the one to the other, in vectors: sums and results alike by their elements."""
    found: dict[tuple[int, int], Fraction] = {}
    for moves in schedule.rounds:
        for move in moves:
            wire = nodes[move.source], nodes[move.target]
            if wire[0] != wire[1]:
                found[wire] = found.get(wire, Fraction(0)) + Fraction(1, schedule.chunks)
    return found


def out_of(schedule: Schedule, nodes: Sequence[int], node: int) -> Fraction:
    return sum((amount for wire, amount in crossings(schedule, nodes).items() if wire[0] == node), Fraction(0))


@given(nodes=MIXTURES, between=BETWEEN)
def test_every_mixture_of_nodes_keeps_to_all_laws(nodes: list[int], between: str) -> None:
    assert broken(build_schedule("hierarchical", len(nodes), nodes=nodes, between=between)) is None


@given(nodes=MIXTURES, between=BETWEEN)
def test_every_node_sends_and_gets_twice_what_the_others_have_over_their_number(nodes: list[int], between: str) -> None:
    """2 (H - 1) / H vectors each way, which is the least for an all-reduce of H nodes, however many workers each has."""
    schedule, hosts = build_schedule("hierarchical", len(nodes), nodes=nodes, between=between), len(set(nodes))
    for node in set(nodes):
        assert out_of(schedule, nodes, node) == Fraction(2 * (hosts - 1), hosts)
    arrived = Counter[int]()
    for (_, node), amount in crossings(schedule, nodes).items():
        arrived[node] += amount * hosts  # type: ignore[assignment]
    assert all(amount == 2 * (hosts - 1) for amount in arrived.values())


@pytest.mark.parametrize("between", ["ring", "tree"])
def test_two_hosts_of_four_workers_exchange_one_vector_each_way(between: str) -> None:
    nodes = (0, 0, 0, 0, 1, 1, 1, 1)
    found = crossings(build_schedule("hierarchical", 8, nodes=nodes, between=between), nodes)
    assert found == {(0, 1): 1, (1, 0): 1}
    ring = crossings(build_schedule("ring", 8), nodes)
    assert ring == {(0, 1): Fraction(14, 8), (1, 0): Fraction(14, 8)}
    direct = crossings(build_schedule("peer_to_peer", 8), nodes)
    assert direct == {(0, 1): 4, (1, 0): 4}


@given(counts=st.lists(st.integers(1, 5), min_size=2, max_size=5))
def test_a_ring_of_ranks_by_node_crosses_each_wire_by_one_link(counts: list[int]) -> None:
    nodes = [node for node, count in enumerate(counts) for _ in range(count)]
    links = [link for link in build_schedule("ring", len(nodes)).links() if nodes[link[0]] != nodes[link[1]]]
    assert len(links) == (len(counts) if len(counts) > 2 or len(nodes) > 2 else 1)


@given(nodes=MIXTURES, between=BETWEEN)
def test_the_workers_of_a_node_share_its_additions(nodes: list[int], between: str) -> None:
    """No two of a node own numbers of chunks that differ by more than one."""
    schedule = build_schedule("hierarchical", len(nodes), nodes=nodes, between=between)
    for node in set(nodes):
        here = [rank for rank, other in enumerate(nodes) if other == node]
        owned = [{a.chunk for a in program(schedule, rank) if isinstance(a, Add)} for rank in here]
        if len(nodes) > 1 and len(here) > 1:
            assert max(map(len, owned)) - min(map(len, owned)) <= 1


def test_what_leaves_the_node_is_handed_over_first() -> None:
    nodes = (0, 0, 1, 1, 2, 2)
    schedule = build_schedule("hierarchical", 6, nodes=nodes)
    for rank in range(6):
        moves = list(schedule.moves_of(rank))
        for number in {number for number, _ in moves}:
            sent = [move.target for round_, move in moves if round_ == number and move.source == rank]
            got = [move.source for round_, move in moves if round_ == number and move.target == rank]
            assert sent == sorted(sent, key=lambda peer: nodes[peer] == nodes[rank])
            assert got == sorted(got, key=lambda peer: nodes[peer] != nodes[rank])
    first = next(action for action in program(schedule, 0) if not isinstance(action, Send))
    assert nodes[first.peer if isinstance(first, Add) else -1] == 0


@pytest.mark.parametrize("hosts", [2, 3])
def test_an_update_of_a_free_replica_comes_to_each_host_once(hosts: int) -> None:
    nodes = [rank // 4 for rank in range(4 * hosts)]
    routes = Routes(build_schedule("hierarchical", len(nodes), nodes=nodes), nodes)
    for origin in range(len(nodes)):
        crossed = [
            nodes[peer]
            for member in range(len(nodes))
            for peer in routes.onward(member, origin, 0)
            if nodes[peer] != nodes[member]
        ]
        assert sorted(crossed) == [node for node in range(hosts) if node != nodes[origin]]
