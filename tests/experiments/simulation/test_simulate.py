"""The conditions that a user gives, and the table that comes of them."""

from __future__ import annotations

import json

import pytest

from orchestrator.cli.simulate import simulate
from orchestrator.comm.topologies import TOPOLOGIES, build_schedule
from orchestrator.errors import UsageError
from orchestrator.experiments.simulation import report
from orchestrator.experiments.simulation.conditions import KEYS, Conditions, Network, conditions
from orchestrator.experiments.simulation.report import Question
from tests.projects import REPOSITORY
from tests.refusals import refused

PAGE = (REPOSITORY / "docs" / "simulation.md").read_text()


def test_conditions_are_read_in_their_units() -> None:
    given = {
        "network.latency": "50us",
        "network.bandwidth": "10Gbit",
        "compute": "20ms",
        "failures": "24h",
        "cores": "2",
    }
    found = conditions(given)
    assert [found.network.latency_s, found.network.bandwidth] == pytest.approx([50e-6, 1.25e9])
    assert (found.compute_s, found.failure_s, found.cores) == (0.02, 86400.0, 2)
    assert conditions({}) == Conditions()


def test_every_problem_is_told_at_once() -> None:
    wrong = {
        "compute": "fast",
        "stragglers": "2",
        "jitter": "much",
        "network.add": "0s",
        "network.latencyy": "1s",
        "cores": "two",
        "network.bandwidth": "0Gbit",
    }
    with pytest.raises(UsageError) as caught:
        conditions(wrong)
    for part in (
        "compute=fast: expected a time such as 50us",
        "stragglers=2: expected a share from 0 to 1",
        "jitter=much: expected a share from 0 to 1",
        "network.add=0s: expected a rate such as 1GB",
        "network.latencyy: no such key; did you mean network.latency?",
        "cores=two: expected a number from 0 to 100,000",
        "network.bandwidth: must be greater than 0",
    ):
        assert part in caught.value.message


@pytest.mark.parametrize("cores", ["-2", "1.5", "100001", "²", ""])
def test_cores_are_counted(cores: str) -> None:
    with refused("simulation.conditions", f"cores={cores}"):
        conditions({"cores": cores})


def test_hosts_go_with_wires_and_not_with_cores() -> None:
    found = conditions({"hosts": "2", "wire.bandwidth": "1Gbit", "wire.latency": "1ms"}).network
    assert (found.hosts, found.wire_bandwidth, found.wire_latency_s) == (2, 125e6, 1e-3)
    for given, named in (
        ({"hosts": "0"}, "hosts=0"),
        ({"wire.bandwidth": "0Gbit"}, "wire.bandwidth"),
        ({"hosts": "2", "cores": "4"}, "cores"),
    ):
        with refused("simulation.conditions", named):
            conditions(given)


def test_an_update_of_a_free_replica_passes_the_wires_as_often_as_its_way_says() -> None:
    network = Network(hosts=2)
    by_host = build_schedule("hierarchical", 8, nodes=network.nodes(8))
    assert report.crossings(by_host, network) == 4
    assert report.crossings(build_schedule("peer_to_peer", 8), network) == 16
    assert report.crossings(by_host, Network()) == 0
    with refused("simulation.routes"):
        report.crossings(build_schedule("ring", 129), network)
    (row,) = report.answer(
        question(8, topologies=[("hierarchical", {})], modes=[("bap", {})], conditions=Conditions(network))
    )
    assert row.wire_bytes > 4 * 1000 * 8
    assert "MB per wire" in report.table([row])


def test_there_are_no_more_hosts_than_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    with refused("simulation.hosts"):
        simulate(["digits"], [], "4", "1M", Conditions(Network(hosts=5)))


def test_every_condition_is_on_the_page() -> None:
    for key, (_, _, sentence) in KEYS.items():
        assert f"| `{key}` | {sentence}" in PAGE


def question(workers: int, **changes: object) -> Question:
    every: list[tuple[str, dict[str, object]]] = [(name, {}) for name in TOPOLOGIES]
    asked = {"elements": 1000, "steps": 40, "topologies": every, "modes": [("bsp", {}), ("ssp", {}), ("bap", {})]}
    return Question(workers=workers, shards=max(8, workers), **{**asked, "conditions": Conditions(), **changes})  # type: ignore[arg-type]


def test_each_topology_under_each_mode_has_a_row() -> None:
    rows = report.answer(question(4))
    assert len(rows) == 3 * len(TOPOLOGIES)
    assert report.table(rows).count("\n") == len(rows)
    json.dumps([row.as_dict() for row in rows])


def test_the_trace_has_what_was_computed_and_sent() -> None:
    events = report.chrome_trace(question(4), ("ring", {}))
    assert events is not None
    sends = [each for each in events if each["name"].startswith("send")]
    assert len(sends) == report._TRACED_STEPS * 4 * 6
    assert all(each["ph"] == "X" and each["dur"] >= 0 for each in events)
    assert report.chrome_trace(question(65), ("ring", {})) is None


def test_a_model_in_stages_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    for stages in ("2", "auto"):
        with refused("simulation.stages"):
            simulate(["digits"], [f"cluster.stages={stages}"], "4", "1M", Conditions())


@pytest.mark.long
def test_a_hundred_thousand_workers() -> None:
    rows = report.answer(question(100_000, steps=100, elements=25_000_000))
    ring, tree = (next(row for row in rows if row.topology == name) for name in ("ring", "tree"))
    assert ring.exchange_s > 199_998 * 50e-6
    assert tree.exchange_s < ring.exchange_s
