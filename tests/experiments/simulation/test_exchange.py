"""An exchange in virtual time is the schedule's own, and costs what its source says."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.comm.topologies import TOPOLOGIES, Finish, Send, build_schedule, program
from orchestrator.experiments.simulation import exchange as module
from orchestrator.experiments.simulation.conditions import Network
from orchestrator.experiments.simulation.discrete_events import messages
from orchestrator.experiments.simulation.exchange import alike, all_alike, exchange, host_alike, hosts_alike, play
from tests.refusals import refused

NETWORKS = st.builds(
    Network,
    latency_s=st.floats(0, 1e-2),
    bandwidth=st.floats(1e6, 1e10),
    message_s=st.floats(0, 1e-3),
    byte_s=st.floats(0, 1e-8),
)


@given(st.sampled_from(["ring", "peer_to_peer"]), st.integers(2, 9), NETWORKS, st.floats(0, 1e8))
def test_one_member_stands_for_all_where_all_do_alike(
    topology: str, workers: int, network: Network, size: float
) -> None:
    schedule = build_schedule(topology, workers)
    assert all_alike(schedule)
    one, all_ = alike(schedule, size, size / 2, network), play(schedule, size, size / 2, network)[0]
    assert (one.seconds, one.sent, one.busy_s) == pytest.approx((all_.seconds, all_.sent, all_.busy_s))
    assert one.link == pytest.approx(all_.link)


@given(
    st.sampled_from(["ring", "peer_to_peer", "hierarchical"]),
    st.integers(2, 5),
    st.integers(1, 4),
    NETWORKS,
    st.tuples(st.floats(0, 1e-2), st.floats(1e6, 1e10)),
    st.floats(1, 1e8),
)
def test_one_host_of_many_alike_stands_for_all(
    topology: str, hosts: int, each: int, network: Network, wire: tuple[float, float], size: float
) -> None:
    network = replace(network, hosts=hosts, wire_latency_s=wire[0], wire_bandwidth=wire[1])
    schedule = build_schedule(topology, hosts * each, nodes=network.nodes(hosts * each))
    assert hosts_alike(schedule, hosts)
    one, all_ = host_alike(schedule, size, size / 2, network), play(schedule, size, size / 2, network)[0]
    assert (one.seconds, one.sent, one.busy_s) == pytest.approx((all_.seconds, all_.sent, all_.busy_s))
    assert (one.link, one.wire) == pytest.approx((all_.link, all_.wire))


@given(
    st.sampled_from(list(TOPOLOGIES)),
    st.integers(2, 12),
    st.integers(1, 6),
    NETWORKS,
    st.tuples(st.floats(0, 1e-2), st.floats(1e6, 1e10)),
    st.floats(1, 1e8),
)
def test_hosts_of_any_number_of_members_have_the_figures_of_full_play(
    topology: str, workers: int, hosts: int, network: Network, wire: tuple[float, float], size: float
) -> None:
    """Also where so many messages are not played that could be left out: unequal hosts never stand for each other."""
    network = replace(network, hosts=min(hosts, workers), wire_latency_s=wire[0], wire_bandwidth=wire[1])
    nodes = network.nodes(workers, build_schedule(topology, workers).servers)
    schedule = build_schedule(topology, workers, nodes=nodes)
    with patch.object(module, "SOME_MOVES", 0):
        found = exchange(schedule, size, size / 2, network)
    whole = play(schedule, size, size / 2, network)[0]
    for figure in ("seconds", "sent", "link", "busy_s", "wire"):
        assert getattr(found, figure) == pytest.approx(getattr(whole, figure)), figure
    assert found.played or workers % network.hosts == 0


@pytest.mark.slow
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_thousand_members_send_and_take_what_their_programs_say(topology: str) -> None:
    """The engine, and so the virtual cluster, carries out `program`."""
    network = Network(hosts=125)
    schedule = build_schedule(topology, 1000, nodes=network.nodes(1000))
    for rank in (0, 1, 7, 8, 499, 999, schedule.members - 1):
        done = [
            (isinstance(action, Send), action.peer, action.chunk)
            for action in program(schedule, rank)
            if not isinstance(action, Finish)
        ]
        simulated = [
            (True, task.sends.target, task.sends.chunk)
            if task.sends is not None
            else (False, task.takes.source, task.takes.chunk)  # type: ignore[union-attr]
            for task in messages(schedule, rank, {"add": 1.0, "copy": 1.0}, network)
        ]
        assert simulated == done


def test_hosts_of_unlike_members_are_not_alike() -> None:
    assert not hosts_alike(build_schedule("tree", 9), 3)
    assert not hosts_alike(build_schedule("parameter_server", 9), 3)
    assert not hosts_alike(build_schedule("ring", 9), 2)
    assert not hosts_alike(build_schedule("hierarchical", 8, nodes=Network(hosts=4).nodes(8), between="tree"), 4)


def test_members_of_a_tree_and_servers_differ() -> None:
    assert not all_alike(build_schedule("tree", 9))
    assert not all_alike(build_schedule("parameter_server", 9))


@pytest.mark.parametrize("topology", TOPOLOGIES)
@given(workers=st.integers(2, 8), network=NETWORKS, size=st.floats(1, 1e8))
def test_no_exchange_is_faster_than_its_bytes_and_its_latency(
    topology: str, workers: int, network: Network, size: float
) -> None:
    """No all-reduce can do with less than 2 (W - 1) / W of the vector; servers take some of that from workers."""
    found = exchange(build_schedule(topology, workers), size, size, network)
    assert found.seconds >= (found.sent / network.bandwidth + network.latency_s) * (1 - 1e-9)
    if topology != "parameter_server":
        assert found.sent >= 2 * (workers - 1) / workers * size * (1 - 1e-9)


@pytest.mark.parametrize("workers", [2, 5, 16])
def test_figures_that_are_known(workers: int) -> None:
    latency, rate, size = 1e-3, 1e6, 1e6
    network = Network(latency_s=latency, bandwidth=rate)
    rounds = 2 * (workers - 1)
    ring = exchange(build_schedule("ring", workers), size, size, network)
    assert ring.seconds == pytest.approx(rounds * (latency + size / workers / rate))  # Patarasu and Yuan, section 3
    direct = exchange(build_schedule("peer_to_peer", workers), size, size, network)
    assert direct.seconds == pytest.approx(2 * (latency + (workers - 1) * size / workers / rate))
    server = exchange(build_schedule("parameter_server", workers), size, size, network)
    assert server.seconds == pytest.approx(2 * latency + 2 * workers * size / rate)


def test_what_would_take_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SOME_MOVES", 10)
    monkeypatch.setattr(module, "MOST_MOVES", 20)
    with refused("simulation.moves"):
        exchange(build_schedule("tree", 9), 1.0, 1.0, Network())


@pytest.mark.parametrize("topology", TOPOLOGIES)
@given(workers=st.integers(2, 8), hosts=st.integers(1, 8), size=st.floats(1, 1e8))
def test_wires_between_hosts_carry_what_the_schedule_sends_between_them(
    topology: str, workers: int, hosts: int, size: float
) -> None:
    network = Network(latency_s=0.0, bandwidth=1e15, hosts=min(hosts, workers), wire_latency_s=1e-3, wire_bandwidth=1e6)
    plain = build_schedule(topology, workers)
    nodes = network.nodes(workers, plain.servers)
    schedule = build_schedule(topology, workers, nodes=nodes)
    found = exchange(schedule, size, size / 2, network)
    out = [0.0] * network.hosts
    for move in (move for moves in schedule.rounds for move in moves if nodes[move.source] != nodes[move.target]):
        out[nodes[move.source]] += (size if move.kind == "add" else size / 2) / schedule.chunks
    assert found.wire == pytest.approx(max(out))
    assert found.seconds >= (found.wire / network.wire_bandwidth) * (1 - 1e-9)
    if topology == "hierarchical" and network.hosts > 1:
        assert found.wire == pytest.approx(1.5 * size * (network.hosts - 1) / network.hosts)


def test_two_hosts_in_the_figures_of_the_page() -> None:
    """25 M parameters on two hosts of 4: half of the sums, 8 bytes each, and half of the results, 4 bytes."""
    network = Network(latency_s=0.0, bandwidth=1e12, hosts=2, wire_latency_s=0.0, wire_bandwidth=125e6)
    nodes = network.nodes(8)
    assert nodes == (0, 0, 0, 0, 1, 1, 1, 1)
    by_host = exchange(build_schedule("hierarchical", 8, nodes=nodes), 200e6, 100e6, network)
    assert by_host.wire == 150e6
    assert by_host.seconds == pytest.approx(150e6 / 125e6, rel=1e-2)
    assert exchange(build_schedule("ring", 8), 200e6, 100e6, network).wire == 262.5e6
