"""By which schedule the workers of a generation add up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.comm.topologies import build_schedule
from orchestrator.config.plan import Exchange, Variant
from orchestrator.controller.events import Begin
from orchestrator.controller.rendezvous.schedules import groups_of, schedule_of
from orchestrator.worker.member import generation as module
from orchestrator.worker.member.generation import Generation, packed


def begin(workers: int, servers: int, *, without_servers: bool = False, stages: tuple[int, ...] = ()) -> Begin:
    return Begin(
        generation=0,
        members=tuple(range(workers + servers)),
        shards=((),) * workers,
        without_servers=without_servers,
        run_manifest={},
        nodes=(0,) * (workers + servers),
        stages=stages,
    )


@pytest.mark.parametrize(
    ("topology", "generation", "expected"),
    [
        (Variant("tree", {"arity": 3}), begin(5, 0), build_schedule("tree", 5, arity=3)),
        (Variant("parameter_server", {"servers": 2}), begin(3, 2), build_schedule("parameter_server", 3, servers=2)),
        (Variant("parameter_server", {"servers": 2}), begin(3, 1), build_schedule("parameter_server", 3, servers=1)),
        (
            Variant("parameter_server", {"servers": 2}),
            begin(3, 0, without_servers=True),
            build_schedule("peer_to_peer", 3),
        ),
    ],
)
def test_the_schedule_is_that_of_the_living(topology: Variant, generation: Begin, expected: Any) -> None:
    exchange = Exchange(exact=True, topology=topology, by_tcp=False, between_nodes=False)
    assert schedule_of(generation, exchange) == expected


def test_a_stage_is_added_up_by_those_who_host_it() -> None:
    exchange = Exchange(exact=True, topology=Variant("tree", {"arity": 3}), by_tcp=False, between_nodes=False)
    assert groups_of(begin(3, 0), exchange) == ()
    first, second = groups_of(begin(5, 0, stages=(0, 1, 0, 1, 0)), exchange)
    assert (first.ranks, second.ranks) == ((0, 2, 4), (1, 3))
    assert (first.schedule, second.schedule) == (build_schedule("tree", 3, arity=3), build_schedule("tree", 2, arity=3))
    assert first.peers_of(4) == {0}
    assert second.peers_of(3) == {1}


def test_members_of_stages_are_connected_with_those_that_they_exchange_with() -> None:
    exchange = Exchange(exact=True, topology=Variant("tree", {"arity": 1}), by_tcp=False, between_nodes=False)
    stages = (0, 1, 2, 1, 0, 2, 1)
    shards = ((0, 1), (0,), (0, 1), (1, 2), (2, 3), (2, 3), (3,))
    given = begin(7, 0, stages=stages)
    given = replace(given, shards=shards, state_transfers=((3, 6),))
    generation = Generation(given, schedule_of(given, exchange), groups=groups_of(given, exchange))
    assert generation.hosts == ((0, 0, 4, 4), (1, 3, 3, 6), (2, 2, 5, 5))
    # The hosts of its shards 1 and 2 in the other stages, those of its stage and of the chain, and the transfer of state.
    assert generation.peers_of(3) == {0, 4, 2, 5} | {1} | {2, 4} | {6}
    assert generation.as_event()["stages"] == stages


def test_in_stages_a_member_has_as_many_peers_among_many_as_among_few() -> None:
    exchange = Exchange(exact=True, topology=Variant("ring", {}), by_tcp=False, between_nodes=False)
    many = begin(128, 0, stages=tuple(rank // 32 for rank in range(128)))
    many = replace(many, shards=tuple((rank % 32,) for rank in range(128)))
    generation = Generation(many, schedule_of(many, exchange), groups=groups_of(many, exchange))
    peers = [generation.peers_of(rank) for rank in range(128)]
    assert all(rank in peers[peer] for rank in range(128) for peer in peers[rank])
    assert {0, 32, 64, 96} - {0} <= peers[0]  # for digests
    # Three stages, two of its ring, two of the ring of all, five of the vote, and the first rank's digests.
    assert max(map(len, peers)) <= 3 + 2 + 2 + 5 + 3


def test_members_are_connected_with_those_of_the_sum_and_of_the_vote() -> None:
    exchange = Exchange(exact=True, topology=Variant("ring", {}), by_tcp=False, between_nodes=False)
    given = begin(22, 0)
    generation = Generation(given, schedule_of(given, exchange))
    assert generation.peers_of(0) == {1, 21} | {1, 2, 3, 4}
    assert generation.peers_of(21) == {20, 0} | {5}
    assert sum(len(generation.peers_of(rank)) for rank in range(22)) <= 22 * 2 + 21 * 2


def test_what_follows_from_a_generation_is_found_once_and_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver asks for the peers of each member: what costs as much as there are members may not be found for each."""
    exchange = Exchange(exact=True, topology=Variant("ring", {}), by_tcp=False, between_nodes=False)
    given = begin(64, 0, stages=tuple(rank // 16 for rank in range(64)))
    given = replace(given, shards=tuple((rank % 16,) for rank in range(64)), state_transfers=((3, 60), (40, 3)))
    generation = Generation(given, schedule_of(given, exchange), groups=groups_of(given, exchange))
    found = {name: Mock(wraps=getattr(module, name)) for name in ("hosts_of", "vote_schedule")}
    for name, counted in found.items():
        monkeypatch.setattr(module, name, counted)
    before = packed(generation)
    peers = [generation.peers_of(rank) for rank in range(64)]
    assert {60, 40} <= peers[3]
    assert 3 in peers[60] & peers[40]
    assert {name: counted.call_count for name, counted in found.items()} == {"hosts_of": 1, "vote_schedule": 1}
    assert packed(generation) == before
    again = Generation.unpacked(before)
    assert again == generation
    assert [again.peers_of(rank) for rank in range(64)] == peers
