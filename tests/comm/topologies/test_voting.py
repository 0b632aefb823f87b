"""Votes go up a tree and down again, whatever the topology: under the laws of all schedules, in few rounds, over few wires."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.comm.collectives import VOTE, Exchange
from orchestrator.comm.topologies.laws import broken
from orchestrator.comm.topologies.voting import vote_schedule
from tests.comm.topologies.cases import NAMES, variants
from tests.comm.transports.worlds import Member
from tests.products import fewer
from tests.worker.test_exchange import exchanged


@pytest.mark.parametrize("members", range(1, 12))
def test_a_vote_is_under_the_laws_of_schedules(members: int) -> None:
    assert broken(vote_schedule(members)) is None


@given(nodes=st.lists(st.integers(0, 3), min_size=1, max_size=20))
@fewer(20, most=100)
def test_members_of_a_node_vote_among_themselves_first(nodes: list[int]) -> None:
    schedule = vote_schedule(len(nodes), nodes)
    assert broken(schedule) is None
    moves = [move for moves in schedule.rounds for move in moves]
    across = [move for move in moves if nodes[move.source] != nodes[move.target]]
    assert (len(moves), len(across)) == (2 * (len(nodes) - 1), 2 * (len(set(nodes)) - 1))


def test_rounds_grow_with_the_logarithm_of_the_members() -> None:
    assert [len(vote_schedule(members).rounds) for members in (1, 2, 5, 21, 85, 341, 1365)] == [0, 2, 2, 4, 6, 8, 10]
    assert max(len(vote_schedule(1365).peers_of(rank)) for rank in range(1365)) == 5


def test_nodes_are_told_for_all_members_or_for_none() -> None:
    with pytest.raises(ValueError, match="2 nodes are told for 3 members"):
        vote_schedule(3, (0, 1))


@pytest.mark.threads
@pytest.mark.parametrize("name", NAMES)
def test_everybody_has_the_maximum_servers_too(name: str) -> None:
    def vote(exchange: Exchange, _member: Member, rank: int) -> list[list[int]]:
        own = torch.tensor([rank, -rank, rank % 2])
        return [exchange.maximum(step, 0, VOTE, own + step).tolist() for step in range(2)]

    for schedule in variants(name, 6, (1, 3)):
        last = schedule.members - 1
        assert exchanged(schedule, vote) == [[[last, 0, 1], [last + 1, 1, 2]]] * schedule.members
