"""A step on shared cores, task by task, costs no less than its work and its longest way, and is the schedule's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.comm.topologies import TOPOLOGIES, build_schedule
from orchestrator.experiments.simulation.conditions import Conditions, Network
from orchestrator.experiments.simulation.cores import messages_of, play_steps, simulate_step
from orchestrator.experiments.simulation.exchange import exchange

FREE = Network(latency_s=0.0, bandwidth=1e30)


@pytest.mark.slow
@pytest.mark.parametrize("topology", TOPOLOGIES)
@given(
    workers=st.integers(1, 7),
    cores=st.integers(1, 8),
    compute=st.floats(0, 1e-2),
    update=st.floats(1e-6, 1e-2),
    message=st.floats(0, 1e-3),
    vote=st.floats(0, 1e-3),
)
def test_no_step_is_shorter_than_its_work_on_all_cores_or_its_longest_way_nor_longer_than_one_after_the_other(
    topology: str, workers: int, cores: int, compute: float, update: float, message: float, vote: float
) -> None:
    conditions = Conditions(network=Network(0.0, 1e30, message), update_s=update, vote_s=vote, cores=cores)
    schedule = build_schedule(topology, workers)
    computing = [compute * (1 + rank) for rank in range(workers)]
    votes = vote * workers * (schedule.members > 1)
    found = simulate_step(schedule, computing, (0.0, 0.0), conditions)
    assert found.workers_s == pytest.approx(sum(computing) + votes + workers * update + messages_of(schedule) * message)
    assert found.workers_s <= found.busy_s * (1 + 1e-9)
    steps = play_steps(schedule, [computing] * 3, (0.0, 0.0), conditions)
    assert 3 * found.busy_s / cores * (1 - 1e-9) <= sum(steps) <= 3 * found.busy_s * (1 + 1e-9)
    assert steps[0] >= (max(computing) + update) * (1 - 1e-9)
    assert sum(steps) >= 3 * (max(computing) + update) * (1 - 1e-9)


def test_workers_that_share_cores_are_dealt_them_shard_by_shard() -> None:
    schedule = build_schedule("ring", 3)
    conditions = Conditions(network=FREE, update_s=0.0, cores=2)
    assert simulate_step(schedule, [3.0, 3.0, 2.0], (0.0, 0.0), conditions, shards=3).seconds == pytest.approx(
        4.0, rel=0.1
    )
    assert simulate_step(schedule, [4.0, 0.0, 0.0], (0.0, 0.0), conditions, shards=4).seconds == 4.0


def test_a_vote_goes_up_a_tree_and_down_again_whatever_the_topology() -> None:
    conditions = Conditions(network=Network(1e-3, 1e30), update_s=0.0)
    ring, peers = (
        play_steps(build_schedule(topology, 16), [[0.0] * 16] * 2, (0.0, 0.0), conditions)
        for topology in ("ring", "peer_to_peer")
    )
    vote = 4e-3  # two levels below the root
    assert ring[0] == pytest.approx(vote + 2 * 15 * 1e-3, rel=0.1)
    assert peers[0] == pytest.approx(vote + 2e-3, rel=0.1)


@pytest.mark.parametrize("topology", sorted(set(TOPOLOGIES) - {"tree"}))  # a tree's steps overlap here
@pytest.mark.parametrize("workers", [2, 5, 8])
def test_with_a_core_each_the_sum_takes_what_the_exchange_of_the_table_takes(topology: str, workers: int) -> None:
    schedule = build_schedule(topology, workers)
    network = Network(latency_s=1e-4, bandwidth=1e6)
    conditions = Conditions(network=network, update_s=0.0)
    size = 1e7
    whole = simulate_step(schedule, [0.0] * workers, (size, size / 2), conditions).seconds
    vote = simulate_step(schedule, [0.0] * workers, (0.0, 0.0), conditions).seconds
    assert whole - vote == pytest.approx(exchange(schedule, size, size / 2, network).seconds, rel=0.05)


def test_what_goes_on_beside_takes_idle_cores_and_holds_up_others_where_none_is_idle() -> None:
    alone, both = build_schedule("ring", 1), build_schedule("ring", 2)
    quiet = Conditions(network=FREE, update_s=0.5, cores=2)
    for beside in (replace(quiet, background_s=1.0), replace(quiet, others=0.5)):
        assert simulate_step(alone, [1.0], (0.0, 0.0), beside).seconds == pytest.approx(1.5)
        assert simulate_step(both, [1.0, 1.0], (0.0, 0.0), beside).seconds > 1.6
    much = replace(quiet, background_s=2.5)
    assert simulate_step(alone, [1.0], (0.0, 0.0), much).seconds == pytest.approx(2.0, rel=0.1)
    assert simulate_step(both, [1.0, 1.0], (0.0, 0.0), replace(much, cores=0)).seconds == pytest.approx(1.5)


@given(
    workers=st.integers(3, 8),
    background=st.floats(0, 1e-2),
    others=st.floats(0, 0.9),
    switch=st.floats(0, 1e-2),
    contention=st.floats(1, 2),
)
def test_where_cores_are_never_idle_a_step_takes_all_that_is_done_in_it(
    workers: int, background: float, others: float, switch: float, contention: float
) -> None:
    """Without messages that are waited for the cores are busy all the time."""
    conditions = Conditions(
        network=FREE, update_s=1e-2, cores=1, background_s=background, others=others, switch_s=switch
    )
    conditions = replace(conditions, contention=contention)
    schedule = build_schedule("ring", workers)
    found = simulate_step(schedule, [1e-2] * workers, (0.0, 0.0), conditions)
    whole = workers * (1e-2 + switch + contention * 1e-2 + background)
    assert found.busy_s == pytest.approx(whole)
    assert found.seconds == pytest.approx(whole / (1 - others), rel=0.25)


def test_steps_of_different_length_are_played_one_after_the_other() -> None:
    schedule = build_schedule("ring", 2)
    conditions = Conditions(network=FREE, update_s=0.0, cores=2)
    seconds = play_steps(schedule, [[1.0, 2.0], [3.0, 1.0], [1.0, 1.0]], (0.0, 0.0), conditions)
    assert seconds == pytest.approx([2.0, 3.0, 1.0])


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_messages_are_those_of_the_programs(workers: int) -> None:
    """A vote is one chunk that goes up a tree and down again, and the sum in a ring is as many chunks as members."""
    assert messages_of(build_schedule("ring", workers)) == 2 * 2 * (workers - 1) * (1 + workers)
