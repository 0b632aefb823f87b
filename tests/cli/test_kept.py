"""Checkpoints that are kept, by true command lines. The best one is served and begun with, on other workers, killed, resumed
and rerun. The last card of a chain of three runs tells of all. Settings that do not fit are refused before anything is
started."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.provenance.tracking import Store
from tests.cli.test_models import LOADED, make_points
from tests.projects import PATIENCE_S, Project

pytestmark = [
    pytest.mark.ray,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated"),
]
KEEPING = ("checkpoint.best.metric=validation/loss", "checkpoint.best.keep=2", "checkpoint.model=best")
SHAKEN = (
    "optimizer.lr=0.5",
    "run.steps=40",
    "evaluation.every=4",
)  # ten evaluations, of which the last is not the best


@dataclass
class Kept:
    project: Project
    first: dict[str, Any]

    def steps(self, run_id: str) -> list[int]:
        """The steps of the checkpoints that are there."""
        names = (self.project.folder(run_id) / "checkpoints").glob("checkpoint-*.json")
        return sorted(int(name.stem.partition("-")[2]) for name in names)

    def losses(self, run_id: str) -> dict[int, float]:
        events = map(json.loads, (self.project.folder(run_id) / "journal.jsonl").read_text().splitlines())
        return {each["step"] + 1: each["metrics"]["validation/loss"] for each in events if each["event"] == "evaluated"}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    project = make_points(tmp_path_factory.mktemp("points") / "project")
    done = project.run("conf=points", *SHAKEN, *KEEPING, "checkpoint.archive=15", "output=json")
    assert done.code == 0, done.err
    yield Kept(project, done.report)
    assert project.leftovers() == []


def test_the_best_of_ten_stay_and_one_is_the_model_that_mlflow_loads(kept: Kept, tmp_path: Path) -> None:
    run_id, losses = kept.first["run_id"], kept.losses(kept.first["run_id"])
    best = sorted(losses, key=lambda step: (losses[step], step))[:2]
    assert len(losses) == 10
    assert best[0] != 40
    assert set(kept.steps(run_id)) >= {*best, 15, 30, 40}
    assert len(kept.steps(run_id)) <= 6  # with the two newest
    model = kept.first["model"]
    assert (model["step"], model["digest"] != kept.first["digest"]) == (best[0], True)
    store = Store(None, kept.project.path / ".orchestrator")
    done = subprocess.run(
        [sys.executable, "-c", LOADED, store.uri, f"runs:/{run_id}/trained"],
        cwd=tmp_path,
        env=kept.project.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1])[0] == model["digest"]
    again = kept.project.run(f"rerun={run_id}", "cluster.workers=3", "output=json")
    assert (again.code, again.report["verdict"]) == (0, "exact"), again.err


def test_a_run_begun_with_the_best_is_killed_resumed_and_rerun_and_its_heir_tells_of_both(kept: Kept) -> None:
    project, first = kept.project, kept.first
    began = f"step {first['model']['step']} of run {first['run_id']}"
    process = project.start(
        "conf=points", f"begin={first['run_id'][:12]}@best", "run.steps=3000", "evaluation.every=100",
        "checkpoint.every=50", "cluster.workers=3", "topology=tree", "optimizer.lr=0.001",
    )  # fmt: skip
    run_id = _killed_after(process, project, 200)
    resumed = project.run(f"resume={run_id}", "cluster.workers=2", "output=json")
    assert resumed.code == 0, resumed.err
    trace = [json.loads(line) for line in (project.folder(run_id) / "trace.jsonl").read_text().splitlines()]
    assert [line["step"] for line in trace] == list(range(first["model"]["step"], 3000))
    checkpoints = project.folder(first["run_id"]) / "checkpoints"
    aside = checkpoints.rename(checkpoints.with_name("aside"))  # the state was kept apart
    again = project.run(f"rerun={run_id}", "cluster.workers=1", "output=json")
    aside.rename(checkpoints)
    assert (again.code, again.report["verdict"]) == (0, "exact"), again.err
    last = project.run("conf=points", f"begin={run_id}", "run.steps=3020", "output=json")
    assert last.code == 0, last.err
    card = (project.folder(last.report["run_id"]) / "card.md").read_text()
    assert f"step 3000 of run {run_id}, which began with {began}" in card


@pytest.mark.parametrize(
    ("given", "problem"),
    {
        ("begin={run}@3",): "has no checkpoint of step 3; it has",
        ("begin={run}", "run.steps=40"): "40 steps in all, and",
        (
            "begin={run}",
            "run.steps=50",
            "sync=ssp",
        ): "begin: with sync=ssp a run is repeated by the order of all its updates",
        ("begin={run}", "run.steps=50", "optimizer=adamw"): "optimizer.name: adamw here, and adam in the run",
        ("begin={run}", "run.steps=50", "optimizer.amsgrad=true"): "it keeps max_exp_avg_sq of a parameter",
        ("begin={run}", "run.steps=50", "pipeline.args.hidden=4"): "does not fit: the tensor '0.weight' is float32",
        ("begin=ffff", "run.steps=50"): "there is no run ffff",
    }.items(),
)
def test_what_cannot_be_begun_with_is_refused_before_the_start(
    kept: Kept, given: tuple[str, ...], problem: str
) -> None:
    done = kept.project.run("conf=points", *(each.format(run=kept.first["run_id"]) for each in given))
    assert done.code == 2
    assert problem in done.err
    assert "Traceback" not in done.err


def test_a_finished_run_says_how_to_train_on(kept: Kept) -> None:
    done = kept.project.run(f"resume={kept.first['run_id']}")
    assert done.code == 2
    assert f"conf=NAME begin={kept.first['run_id']} run.steps=MORE" in done.err


def test_a_state_that_is_gone_keeps_a_rerun_from_starting_unless_another_run_has_it(kept: Kept) -> None:
    project = kept.project
    parent = project.run("conf=points", "checkpoint.archive=5", "output=json").report["run_id"]
    begun = project.run("conf=points", f"begin={parent}@5", "run.steps=12", "output=json").report
    shutil.rmtree(project.path / ".orchestrator" / "begin")
    shutil.rmtree(project.folder(parent) / "checkpoints")
    gone = project.run(f"rerun={begun['run_id']}")
    assert gone.code == 4
    assert f"run {parent} has no checkpoint here any more" in gone.err
    assert "name a run that has this state" in gone.err
    other = project.run(f"rerun={parent}", "cluster.workers=1", "output=json").report["run_id"]
    again = project.run(f"rerun={begun['run_id']}", f"begin={other}@5", "output=json")
    assert (again.code, again.report["verdict"]) == (0, "exact"), again.err


def _killed_after(process: subprocess.Popen[str], project: Project, steps: int) -> str:
    """The id of the run, whose driver is gone after that many steps."""
    known = {folder.name for folder in (project.path / ".orchestrator").iterdir()}
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for trace in (project.path / ".orchestrator").glob("*/trace.jsonl"):
            if trace.parent.name not in known and trace.read_bytes().count(b"\n") >= steps:
                process.send_signal(signal.SIGKILL)
                process.communicate()
                return trace.parent.name
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError("it did not get so far")
