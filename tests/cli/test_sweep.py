"""A sweep comes out the same with every number of slots, after a SIGKILL of its driver, and when it is rerun; nothing stays."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.provenance.tracking import PARENT, Store
from tests.projects import PATIENCE_S, REPOSITORY, Done, Project

pytestmark = pytest.mark.ray
PAGE, FIGURES = ((REPOSITORY / "docs" / name).read_text() for name in ("sweeps.md", "benchmarks/searches.md"))

# Half of the trials fail; of the two that are left one goes on to the last rung.
HALVED = """
conf: good
run: {steps: 4, name: halved}
cluster: {workers: 1}
space:
  optimizer.lr: [0.1, 0.5]
  pipeline.target: ["faults:Good", "faults:Raises"]
search: {name: grid, batch: 4}
objective: {metric: train/loss}
halving: {rungs: [2], factor: 4}
"""
WRITER = """
class Names:
    def __init__(self, run):
        with open('{told}', "a") as file:
            print(run.name, file=file)

    def metrics(self, step, values):
        pass

    def end(self, status, results):
        pass
"""
SEARCHED = ("search.trials=24", "search.batch=6", "search.startup=6")
LONG = ("sweep=sweep", "run.steps=10", "run.arithmetic=portable", "cluster.workers=1", *SEARCHED)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    (tmp_path / "conf").mkdir()
    shutil.copy2(Path(__file__).with_name("faults.py"), tmp_path)
    good = "pipeline: {target: 'faults:Good'}\ndata: {shards: 4, batch_size: 16}\noptimizer: {name: sgd, lr: 0.1}\n"
    (tmp_path / "conf" / "good.yaml").write_text(f"run: {{steps: 4}}\n{good}")
    (tmp_path / "conf" / "halved.yaml").write_text(HALVED)
    found = Project(tmp_path)
    found.commit()
    yield found
    assert found.leftovers() == []


def came_to(report: dict[str, Any]) -> list[Any]:
    """All of a report that must not depend on how a sweep was executed."""
    kept = ("number", "settings", "value", "status", "digest")
    trials = [{key: trial[key] for key in kept} for trial in report["trials"]]
    rungs = [
        [(rung["steps"], rung["value"], rung["digest"]) for rung in trial.get("rungs", [])]
        for trial in report["trials"]
    ]
    best = report["best"]
    return [trials, rungs, best["number"], best["digest"]]


def kill_at(project: Project, ended: int, *arguments: str) -> str:
    """Start a sweep and kill its driver when so many runs have ended; its id."""
    before = set(project.runs())
    process = project.start(*arguments)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for run_id in set(project.runs()) - before:
            journal = project.folder(run_id) / "sweep.jsonl"
            if journal.exists() and journal.read_text().count('"ended"') >= ended:
                process.kill()
                process.communicate()
                return run_id
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError(f"no {ended} runs within {PATIENCE_S:g} s")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")  # MLflow's own use of SQLAlchemy
def test_the_commands_of_the_page(digits: Project) -> None:
    block, _ = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    launch, rerun = block.splitlines()
    done = digits.shell(f"{launch} output=json")
    assert done.code == 0, done.err
    report = done.report
    assert set(report) == {"sweep_id", "status", "objective", "trials", "best"}
    assert [trial["status"] for trial in report["trials"]] == ["finished"] * 6
    assert report["best"]["value"] == min(trial["value"] for trial in report["trials"])
    assert {path.name for path in (digits.folder(report["sweep_id"]) / "pictures").iterdir()} == {
        "history.png", "importance.png", "parallel.png",
    }  # fmt: skip
    _is_in_mlflow(digits, report)
    again = digits.shell(f"{rerun} output=json")
    assert again.code == 0, again.err
    assert (again.report["rerun_of"], again.report["verdict"]) == (report["sweep_id"], "exact")
    assert [trial["verdict"] for trial in again.report["trials"]] == ["exact"] * 6
    assert "exact: all 6 runs agree to the last bit" in again.err


def _is_in_mlflow(project: Project, report: dict[str, Any]) -> None:
    """One run with its trials below it."""
    client = Store(None, project.path / ".orchestrator").client
    sweep = client.get_run(report["sweep_id"])
    assert (sweep.info.status, sweep.data.tags["digest"]) == ("FINISHED", report["best"]["digest"])
    assert sweep.data.metrics["validation/loss"] == report["best"]["value"]
    assert {artifact.path for artifact in client.list_artifacts(report["sweep_id"], "sweep")} == {
        "sweep/sweep.yaml", "sweep/sweep.jsonl", "sweep/sweep.json",
    }  # fmt: skip
    for trial in report["trials"]:
        run = client.get_run(trial["run_id"])
        assert run.data.tags[PARENT] == report["sweep_id"]
        assert run.data.metrics["validation/loss"] == trial["value"]
        assert run.data.params["optimizer.lr"] == str(trial["settings"]["optimizer.lr"])


@pytest.mark.long
def test_a_sweep_whose_driver_is_killed_goes_on_to_the_same_end(project: Project) -> None:
    """With other slots, with trials that fail, and with rungs."""
    whole = project.run("sweep=halved", "parallel=4", "output=json")
    assert whole.code == 0, whole.err
    trials = whole.report["trials"]
    assert sorted(trial["status"] for trial in trials) == ["failed", "failed", "finished", "pruned"]
    assert all("PipelineRaised" in trial["error"] for trial in trials if trial["status"] == "failed")
    sweep_id = kill_at(project, 2, "sweep=halved", "parallel=2")
    gone = project.run(f"resume={sweep_id}", "parallel=3", "output=json")
    assert gone.code == 0, gone.err
    assert gone.report["sweep_id"] == sweep_id
    assert came_to(gone.report) == came_to(whole.report)
    assert project.runs()[sweep_id] == "FINISHED"
    refused = project.run(f"resume={sweep_id}")
    assert (refused.code, refused.out) == (2, "")
    assert "has finished" in refused.err


@pytest.mark.long
def test_a_sweep_with_failures_and_rungs_is_rerun_exactly_and_so_is_a_trial_alone(project: Project) -> None:
    told = project.path.with_name(f"{project.path.name}-told")
    (project.path / "tell.py").write_text(WRITER.format(told=told))
    project.commit()
    whole = project.run("sweep=halved", "parallel=2", "tracking.also=[tell:Names]", "output=json")
    names = told.read_text()
    again = project.run("rerun=last", "parallel=4", "output=json")
    assert (again.code, again.report["verdict"]) == (0, "exact"), again.err
    assert told.read_text() == names != ""  # a repetition is of no interest to others
    best = whole.report["best"]
    alone = project.run(f"rerun={best['run_id']}", "output=json")
    assert (alone.code, alone.report["verdict"]) == (0, "exact"), alone.err


@pytest.mark.long
def test_an_interrupted_sweep_says_how_to_go_on_and_changes_are_refused(project: Project) -> None:
    before = set(project.runs())
    arguments = ("sweep=halved", "space.pipeline.target=[faults:Slow]", "run.steps=100000")
    process = project.start(*arguments, "halving.rungs=[99999]", "output=json")
    deadline = time.monotonic() + PATIENCE_S
    while not any((project.folder(run_id) / "trace.jsonl").exists() for run_id in set(project.runs()) - before):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    report = json.loads(out.splitlines()[-1])
    assert (process.returncode, report["status"]) == (130, "killed"), err
    assert f"resume={report['sweep_id']}" in err
    refused = project.run(f"resume={report['sweep_id']}", "search.seed=5")
    assert refused.code == 2
    assert "search: it determines the trials" in refused.err
    rerun = project.run(f"rerun={report['sweep_id']}")
    assert rerun.code == 4
    assert "go on with it first" in rerun.err


@pytest.mark.long
def test_a_sweep_none_of_whose_trials_comes_to_anything_fails(project: Project) -> None:
    raising = project.run("sweep=halved", "space.pipeline.target=[faults:Raises]", "output=json")
    assert (raising.code, raising.report["best"]) == (1, None)
    assert "every trial failed" in raising.err
    nowhere = project.run("sweep=halved", "objective.metric=validation/accuracy", "output=json")
    assert nowhere.code == 1
    assert "runs have no validation/accuracy at their end; there are train/loss" in nowhere.err


@pytest.mark.long
def test_twenty_four_trials_are_the_same_with_one_and_three_slots_and_after_a_sigkill(digits: Project) -> None:
    """The table of docs/benchmarks/searches.md."""
    reports: list[Done] = [digits.run(*LONG, f"parallel={slots}", "output=json") for slots in (1, 3)]
    sweep_id = kill_at(digits, 11, *LONG, "parallel=3")
    reports.append(digits.run(f"resume={sweep_id}", "parallel=2", "output=json"))
    assert [done.code for done in reports] == [0, 0, 0]
    assert came_to(reports[0].report) == came_to(reports[1].report) == came_to(reports[2].report)
    assert reports[0].report["best"]["digest"][:12] in FIGURES
