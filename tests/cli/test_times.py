"""The statements of docs/results.md about where time goes, on a true run."""

from __future__ import annotations

import json

import pytest

from orchestrator.provenance.tracking import Store
from orchestrator.records import times
from orchestrator.records.lines import read
from tests.projects import REPOSITORY, Project

PAGE = (REPOSITORY / "docs" / "results.md").read_text()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")  # MLflow's own use of SQLAlchemy
def test_the_command_of_the_page(digits: Project) -> None:
    (command,) = [line.strip() for line in PAGE.splitlines() if "trace.timeline=true" in line and "python" in line]
    done = digits.shell(f"{command} cluster.workers=2 run.steps=20 output=json")
    assert done.code == 0, done.err
    folder = digits.path / ".orchestrator" / done.report["run_id"]
    assert sum(done.report["times"].values()) == pytest.approx(1, abs=0.01)
    assert f"{times.IN_WORDS['compute']} " in next(line for line in done.err.splitlines() if line.startswith("  time "))
    windows = list(read(folder / "times.jsonl"))
    for member in ("worker 0", "worker 1"):
        told = [window for window in windows if window["member"] == member]
        assert sum(window["steps"] for window in told) == 20
        assert times.added(told)["compute"] > 0
    events = json.loads((folder / "timeline.json").read_text())["traceEvents"]
    computed = {(each["args"]["step"], each["args"]["shard"]) for each in events if each.get("cat") == "compute"}
    assert computed >= {(step, shard) for step in range(20) for shard in range(8)}
    assert (folder / "pictures" / "time.png").stat().st_size > 10_000
    client = Store(None, digits.path / ".orchestrator").client
    artifacts = {file.path for file in client.list_artifacts(done.report["run_id"], "run")}
    assert {"run/times.jsonl", "run/timeline.json"} <= artifacts
    metrics = client.get_run(done.report["run_id"]).data.metrics
    assert metrics["system/time/compute"] > 0
    assert metrics["system/time/rank_1/compute"] > 0
