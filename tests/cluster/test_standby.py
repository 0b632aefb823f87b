"""The machine of the driver is lost, and another node of the joined Ray goes on with the run, to the undisturbed result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from orchestrator.cluster.actors.standby import is_lost
from orchestrator.records.lines import read
from tests.cluster.conftest import some_hosts
from tests.commands.test_rerun import points, shell, write
from tests.projects import PATIENCE_S, Project
from tests.tracking.server import Server

T = TypeVar("T")

CONF = """\
run: {steps: 600, seed: 3}
pipeline: {target: "study:Study"}
data: {shards: 4, batch_size: 16, inputs: [data/points.csv]}
optimizer: {name: adam, lr: 0.01}
checkpoint: {every: 20}
tracking: {every_s: 1}
"""


def test_only_a_node_that_ray_holds_for_dead_is_lost() -> None:
    nodes = [{"NodeID": "a", "Alive": True}, {"NodeID": "b", "Alive": False}]
    assert is_lost("b", nodes)
    assert not is_lost("a", nodes)
    assert not is_lost("c", nodes)
    assert not is_lost("b", [])


def study(place: Path) -> Project:
    """Whose data only DVC's remote has, beside its own folder."""
    project = Project(place / "project")
    text = (Path(__file__).parents[1] / "commands" / "study.py").read_text()
    write(project, {"study.py": text, "helper.py": "SCALE = 3.0\n", "conf/study.yaml": CONF})
    write(project, {"data/points.csv": points(1)})
    shell(
        project,
        f"git init -q && dvc init -q && dvc config core.analytics false && dvc remote add -q -d far {place / 'remote'}",
        "dvc add -q data/points.csv && dvc push -q",
    )
    project.commit()
    return project


def soon(look: Callable[[], T | None], log: Path) -> T:
    deadline = time.monotonic() + PATIENCE_S
    while (seen := look()) is None:
        assert time.monotonic() < deadline, log.read_text() if log.exists() else "nobody goes on"
        time.sleep(0.1)
    return seen


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.root
def test_when_the_machine_of_the_driver_is_lost_another_node_goes_on(tmp_path: Path) -> None:
    """That node has neither project nor data: they come from the record and from DVC's remote."""
    project, home = study(tmp_path), tmp_path / "home"
    home.mkdir()
    (tmp_path / "server").mkdir()
    undisturbed = project.run("conf=study", "output=json")
    assert undisturbed.code == 0, undisturbed.err
    expected = (project.folder(undisturbed.report["run_id"]) / "trace.jsonl").read_bytes()
    runs = project.path / ".orchestrator"
    before = set(runs.glob("*/journal.jsonl"))
    with some_hosts(hidden=project.path, of_first=True, home=home) as hosts:
        server = Server(tmp_path / "server", "10.77.0.1", hosts.inside)
        server.start()
        try:
            there = replace(project, variables=hosts.access, before=hosts.there)
            process = there.start(
                *("conf=study", f"cluster.address={hosts.address}", "cluster.workers={min: 1, max: 3}", "output=json"),
                *(f"tracking.uri={server.uri}", f"checkpoint.uri={tmp_path / 'checkpoints'}"),
                "pipeline.args={pause_s: 0.02}",
            )
            folder = soon(lambda: next(iter(set(runs.glob("*/journal.jsonl")) - before), None), tmp_path).parent
            soon(lambda: True if _steps(folder) >= 100 or process.poll() is not None else None, tmp_path)
            assert process.poll() is None, process.communicate()
            lost_at, since = _steps(folder), time.monotonic()
            hosts.lose_last()
            process.communicate()
            log = home / ".orchestrator-standby" / f"{folder.name}.log"
            elsewhere = home / ".orchestrator-standby" / folder.name / ".orchestrator" / folder.name
            soon(lambda: True if log.exists() and "after " in log.read_text() else None, log)
            took_s = time.monotonic() - since
            told = soon(lambda: _ended(server, folder.name), log)
        finally:
            server.stop()
    print(f"\nlost at step {lost_at}, next step after {took_s:.1f} s\n{log.read_text()}")
    tags = {each["key"]: each["value"] for each in told["data"]["tags"]}
    assert told["info"]["status"] == "FINISHED", log.read_text()
    assert tags["digest"] == undisturbed.report["digest"]
    assert (elsewhere / "trace.jsonl").read_bytes() == expected
    (lost,) = [each for each in read(elsewhere / "journal.jsonl") if each["event"] == "driver_lost"]
    assert lost["pid"]


def _steps(folder: Path) -> int:
    trace = folder / "trace.jsonl"
    return len(list(read(trace))) if trace.exists() else 0


def _ended(server: Server, run_id: str) -> dict[str, Any] | None:
    answer = server.get(f"/api/2.0/mlflow/runs/get?run_id={run_id}")
    run: dict[str, Any] | None = None if answer is None else json.loads(answer)["run"]
    return run if run is not None and run["info"]["status"] in ("FINISHED", "FAILED", "KILLED") else None
