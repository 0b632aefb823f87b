"""A recorded run's settings: what determines the result stays, the execution may change."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.driver.folders import RunFolder
from orchestrator.driver.recorded import Recorded
from orchestrator.errors import ConfigurationError, NotRerunnable
from orchestrator.settings import load, to_yaml
from orchestrator.tracking import Past

PAST = Past("0123abcd", "a run", "default", "FINISHED", 0, 3, {}, "4a4d")
RUN = {
    "run": {"steps": 3},
    "pipeline": {"target": "a:B"},
    "optimizer": {"name": "sgd", "lr": 0.1},
    "topology": {"name": "parameter_server", "servers": 2},
}


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    files = RunFolder(tmp_path, PAST.run_id)
    files.settings.write_text(to_yaml(load([RUN], [])))
    return Recorded(PAST, files)


def test_the_execution_may_change(recorded: Recorded) -> None:
    settings = recorded.settings(["cluster.workers=3", "cluster.spares=1"])
    assert (settings.cluster.workers.most, settings.topology.servers) == (3, 2)


@pytest.mark.parametrize("override", ["topology=tree", "topology.name=tree", "topology={name: tree, arity: 3}"])
def test_another_topology_leaves_the_options_of_the_recorded_one_behind(recorded: Recorded, override: str) -> None:
    settings = recorded.settings(["cluster.workers=3", override])
    assert (settings.topology.name, settings.topology.servers) == ("tree", None)
    assert recorded.settings(["topology=parameter_server", "topology.servers=1"]).topology.servers == 1


def test_what_determines_the_result_may_not_and_all_of_it_is_named(recorded: Recorded) -> None:
    with pytest.raises(ConfigurationError, match=r"optimizer\.lr: it determines.*\n.*run\.threads: it determines"):
        recorded.settings(["run.threads=2", "optimizer.lr=1", "cluster.workers=2"])


def test_everything_that_is_missing_for_a_rerun_is_named(recorded: Recorded) -> None:
    with pytest.raises(
        NotRerunnable, match=r"no the snapshot of its code \(code.bundle\).*no its trace \(trace.jsonl\)"
    ):
        recorded.require()
