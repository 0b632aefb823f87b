"""Live streams as true command lines."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from orchestrator.records.lines import read
from tests.cli.watching import WatchedRun
from tests.projects import Project

pytestmark = [pytest.mark.ray, pytest.mark.long]

CONF = """
run: {steps: 40}
pipeline: {target: "feeds:Feed", args: {pause: 0.05}}
data: {shards: 4, batch_size: 32}
cluster: {workers: 2}
optimizer: {name: adam, lr: 0.01}
checkpoint: {every: 50}
"""


@pytest.fixture
def feeds(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    shutil.copy2(Path(__file__).with_name("feeds.py"), tmp_path / "feeds.py")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "feed.yaml").write_text(CONF)
    project.commit()
    return project


def test_a_live_run_is_killed_resumed_and_rerun(feeds: Project) -> None:
    """A worker is killed, then the driver, which leaves no checkpoint: the steps are computed again from what was recorded."""
    run = WatchedRun(feeds, "conf=feed")
    run.wait_for_steps(8)
    os.kill(max(run.living().values()), signal.SIGKILL)
    run.wait_for("worker_lost")
    run.wait_for_steps(18)
    before = list(read(run.folder / "trace.jsonl"))[:18]
    run.process.kill()
    run.process.communicate()
    resumed = feeds.run(f"resume={run.run_id}", "cluster.workers=3", "output=json")
    assert resumed.code == 0, resumed.err
    trace = list(read(run.folder / "trace.jsonl"))
    assert trace[:18] == before
    given = list(read(run.folder / "streams.jsonl"))
    assert [(each["step"], each["shard"]) for each in given] == [(n, shard) for n in range(1, 41) for shard in range(4)]
    assert "which a rerun reads" in (run.folder / "card.md").read_text()
    assert {len(each["samples"]) for each in given} == {8}
    repeated = feeds.run(f"rerun={run.run_id}", "cluster.workers=1", "topology=tree", "output=json")
    assert repeated.code == 0, repeated.err
    assert repeated.report["verdict"] == "exact"
    again = feeds.run("conf=feed", "output=json", "pipeline.args.pause=0")
    assert again.report["digest"] != resumed.report["digest"]
