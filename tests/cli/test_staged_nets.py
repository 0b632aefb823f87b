"""Models that people train, in stages, as true processes: a worker is killed, and the run goes on in other stages."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

from orchestrator.numerics.digests import state_digest
from tests.cli.test_stages import wait_for_recoveries
from tests.cli.watching import WatchedRun
from tests.projects import Project

CONF = """\
run: {{steps: 120, seed: 3}}
pipeline: {{target: "nets:{kind}"}}
data: {{shards: 4, batch_size: 8}}
optimizer: {{name: adamw, lr: 0.002}}
gradient: {{clip: 1.0}}
evaluation: {{every: 20}}
"""


@pytest.fixture
def nets(tmp_path: Path) -> Project:
    project = Project(tmp_path / "nets")
    (project.path / "conf").mkdir(parents=True)
    shutil.copy2(Path(__file__).with_name("nets.py"), project.path)
    for kind in ("Gpt2", "UNet"):
        (project.path / "conf" / f"{kind}.yaml").write_text(CONF.format(kind=kind))
    project.commit()
    return project


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.parametrize(("kind", "place"), [("Gpt2", 0), ("UNet", 3)])
def test_it_loses_a_worker_goes_on_in_three_stages_and_is_rerun_whole(nets: Project, kind: str, place: int) -> None:
    run = WatchedRun(nets, f"conf={kind}", "cluster.workers=4", "cluster.stages=2", "output=json")
    (first, *_) = run.wait_for("generation_started")
    assert first["stages"] == [0, 1, 0, 1]
    run.wait_for_steps(3)
    run.kill(run.living()[first["members"][place]])
    wait_for_recoveries(run, 1)
    run.process.send_signal(signal.SIGINT)
    stopped = run.end()
    assert stopped.code == 130, stopped.err
    assert [each["worker"] for each in run.journal("worker_lost")] == [first["members"][place]]
    lost = [each for each in stopped.report["recoveries"] if each["kind"] != "joined"]
    assert [(each["kind"], each["steps_lost"] <= 1) for each in lost] == [("lost", True)]
    done = nets.run("resume=last", "cluster.workers=3", "cluster.stages=3", "topology=tree", "output=json")
    assert done.code == 0, done.err
    assert run.steps == 120
    weights = load_file(run.folder / "model.safetensors")
    assert state_digest(weights) == done.report["digest"], "they come from the workers of three stages"
    rerun = nets.run(f"rerun={run.run_id}", "cluster.workers=1", "cluster.stages=1", "output=json")
    assert (rerun.code, rerun.report["verdict"]) == (0, "exact"), rerun.err
    assert nets.leftovers() == []
