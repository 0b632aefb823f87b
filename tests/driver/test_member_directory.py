"""The messages to the members of a generation, made of what the controller has decided."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.config.resolve import resolve
from orchestrator.config.settings import load
from orchestrator.controller.events import Begin
from orchestrator.driver.run.member_directory import MemberDirectory
from orchestrator.worker.member.generation import INITIAL


def directory(*overrides: str, everywhere: bool = False) -> MemberDirectory:
    settings = load([{"run": {"steps": 2}, "pipeline": {"target": "a:B"}}], overrides)
    made = MemberDirectory(resolve(settings).exchange, "here", "/checkpoints", everywhere=everywhere)
    for member, node in ((3, "here"), (5, "there"), (8, "here"), (9, "there")):
        made.add(member, {"unix": ["unix", f"m{member}"], "tcp": ["tcp", "host", member]}, node)
    return made


def begin(**changes: Any) -> Begin:
    given: dict[str, Any] = {
        "generation": 4,
        "members": (3, 5, 8),
        "nodes": (0, 1, 0),
        "shards": ((0, 1), (2,), (3,)),
        "state_transfers": ((0, 2),),
        "restore": None,
        "without_servers": False,
        "run_manifest": {"steps": 2},
    }
    return Begin(**{**given, **changes})


def test_members_of_one_node_meet_by_unix_socket_and_others_by_tcp() -> None:
    found = directory()
    generation = found.generation(begin(), None)
    assert found.peers(generation, 0) == {1: ["tcp", "host", 5], 2: ["unix", "m8"]}
    by_tcp = directory("transport=tcp")
    assert by_tcp.peers(generation, 0) == {1: ["tcp", "host", 5], 2: ["tcp", "host", 8]}


def test_members_have_the_same_number_exactly_where_they_share_memory() -> None:
    found, by_tcp = directory(), directory("transport=tcp")
    assert [found.node(member) for member in (5, 3, 9, 8)] == [0, 1, 0, 1]
    assert [by_tcp.node(member) for member in (3, 5, 8, 9)] == [0, 1, 2, 3]
    generation = found.generation(begin(), None)
    assert generation.begin.nodes == (0, 1, 0)
    assert generation.as_event()["nodes"] == (0, 1, 0)


def test_who_is_on_another_machine_than_the_driver_is_far() -> None:
    assert directory().far((3, 5, 8, 9)) == [5, 9]


def test_workers_of_a_node_claim_shards_in_the_memory_of_its_first() -> None:
    found = directory()
    for member, node in ((3, "here"), (5, "there"), (8, "here")):
        found.add(member, {"unix": [], "tcp": [], "board": (100 + member, member)}, node)
    assert found.generation(begin(), None).queues == ((0, 103, 3), None, (0, 103, 3))
    assert found.generation(begin(members=(3, 5), shards=((0, 1), (2, 3)), nodes=(0, 1)), None).queues == (None, None)
    assert directory().generation(begin(), None).queues == (None, None, None)


def test_a_handover_connects_who_would_not_meet_otherwise() -> None:
    found = directory("topology=tree")
    chain = begin(members=(3, 5, 8, 9), shards=((0,), (1,), (2,), (3,)), state_transfers=((2, 3),), nodes=(0, 1, 0, 1))
    assert set(found.peers(found.generation(chain, None), 2)) >= {3}


def test_only_who_reaches_the_checkpoints_writes_them() -> None:
    assert directory().generation(begin(), None).writers == (0, 2)
    assert directory(everywhere=True).generation(begin(), None).writers == (0, 1, 2)


def test_the_first_generation_of_a_driver_is_told_apart() -> None:
    found = directory()
    assert [found.generation(begin(), 120).is_first for _ in range(3)] == [True, False, False]


def test_who_moves_what_a_shard_keeps_is_connected() -> None:
    found = directory("topology=tree")
    four = begin(members=(3, 5, 8, 9), shards=((0,), (1,), (2,), (3,)), state_transfers=(), nodes=(0, 1, 0, 1))
    moving = replace(four, moves=((2, 3, (3,)),))
    assert not found.generation(four, None).peers_of(2) & {3}
    assert found.generation(moving, None).peers_of(2) >= {3}
    assert found.generation(moving, None).peers_of(3) >= {2}
    assert found.generation(moving, None).as_event()["moves"] == ((2, 3, (3,)),)
    assert "moves" not in found.generation(four, None).as_event()


def test_who_forgets_without_a_checkpoint_goes_back_to_the_initial_state() -> None:
    assert directory().generation(begin(restore=1, forgets=True), None).restore == (1, INITIAL)
    assert directory().generation(begin(restore=1, forgets=True), 7).restore == (1, "7")
    assert directory().generation(begin(restore=1), None).restore is None


def test_the_checkpoint_to_load_is_named_by_its_step() -> None:
    generation = directory().generation(begin(restore=1), 120)
    assert generation.restore == (1, "120")


@pytest.mark.parametrize(("without", "name", "servers"), [(False, "parameter_server", 1), (True, "peer_to_peer", 0)])
def test_while_no_server_lives_workers_add_up_among_themselves(without: bool, name: str, servers: int) -> None:
    found = directory("topology={name: parameter_server, servers: 2}")
    changes = {"members": (3, 5) if without else (3, 5, 8), "shards": ((0, 1), (2, 3)), "state_transfers": ()}
    generation = found.generation(begin(without_servers=without, **changes), None)
    schedule = generation.schedule
    assert (schedule.topology, schedule.workers, schedule.servers) == (name, 2, servers)
