"""A step on shared cores, task by task, costs no less than its work and its longest way, and is the schedule's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.simulation.conditions import Conditions, Network
from orchestrator.simulation.cores import messages_of, play_step
from orchestrator.simulation.exchange import exchange
from orchestrator.topologies import TOPOLOGIES, build_schedule

FREE = Network(latency_s=0.0, bandwidth=1e30)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@given(
    workers=st.integers(1, 7),
    cores=st.integers(1, 8),
    compute=st.floats(0, 1e-2),
    update=st.floats(0, 1e-2),
    message=st.floats(0, 1e-3),
)
def test_no_step_is_shorter_than_its_work_on_all_cores_or_its_longest_way_nor_longer_than_one_after_the_other(
    topology: str, workers: int, cores: int, compute: float, update: float, message: float
) -> None:
    conditions = Conditions(network=Network(0.0, 1e30, message), update_s=update, cores=cores)
    schedule = build_schedule(topology, workers)
    computing = [compute * (1 + rank) for rank in range(workers)]
    found = play_step(schedule, computing, (0.0, 0.0), conditions)
    assert found.workers_s == pytest.approx(sum(computing) + workers * update + found.messages * message)
    assert found.workers_s <= found.busy_s * (1 + 1e-9)
    assert found.busy_s / cores * (1 - 1e-9) <= found.seconds <= found.busy_s * (1 + 1e-9) + 1e-12
    assert found.seconds >= (max(computing) + update) * (1 - 1e-9)
    wider = play_step(
        schedule, computing, (0.0, 0.0), Conditions(network=conditions.network, update_s=update, cores=64)
    )
    assert wider.seconds <= found.seconds * (1 + 1e-9) + 1e-12


def test_workers_that_share_cores_are_dealt_them_shard_by_shard() -> None:
    schedule = build_schedule("ring", 3)
    conditions = Conditions(network=FREE, update_s=0.0, cores=2)
    assert play_step(schedule, [3.0, 3.0, 2.0], (0.0, 0.0), conditions, shards=3).seconds == pytest.approx(4.0, rel=0.1)
    assert play_step(schedule, [4.0, 0.0, 0.0], (0.0, 0.0), conditions, shards=4).seconds == 4.0


def test_the_vote_goes_through_a_ring_one_member_after_the_other_and_through_a_tree_it_does_not() -> None:
    ring, tree = (
        play_step(
            build_schedule(topology, 16), [0.0] * 16, (0.0, 0.0), Conditions(network=Network(1e-3, 1e30), update_s=0.0)
        ).seconds
        for topology in ("ring", "tree")
    )
    assert ring == pytest.approx(4 * 15 * 1e-3)  # there and back, and the sum as many rounds
    assert tree < ring / 3


@pytest.mark.parametrize("topology", ["ring", "peer_to_peer", "parameter_server"])  # a tree's rounds overlap here
@pytest.mark.parametrize("workers", [2, 5, 8])
def test_with_a_core_each_the_sum_takes_what_the_exchange_of_the_table_takes(topology: str, workers: int) -> None:
    schedule = build_schedule(topology, workers)
    network = Network(latency_s=1e-4, bandwidth=1e6)
    conditions = Conditions(network=network, update_s=0.0)
    size = 1e7
    whole = play_step(schedule, [0.0] * workers, (size, size / 2), conditions).seconds
    vote = play_step(schedule, [0.0] * workers, (0.0, 0.0), conditions).seconds
    assert whole - vote == pytest.approx(exchange(schedule, size, size / 2, network).seconds, rel=0.05)


def test_what_processes_do_beside_takes_idle_cores_first() -> None:
    schedule = build_schedule("ring", 1)
    quiet = Conditions(network=FREE, update_s=0.5, cores=2)
    assert play_step(schedule, [1.0], (0.0, 0.0), quiet).seconds == 1.5
    for beside, expected in ((1.0, 1.5), (1.5, 1.5), (2.5, 2.0)):
        busy = Conditions(network=FREE, update_s=0.5, cores=2, background_s=beside)
        assert play_step(schedule, [1.0], (0.0, 0.0), busy).seconds == expected


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_messages_are_those_of_the_programs(workers: int) -> None:
    """Of a ring a vote is one chunk that goes all the way and back, and the sum is as many chunks as members."""
    assert messages_of(build_schedule("ring", workers)) == 2 * 2 * (workers - 1) * (1 + workers)
