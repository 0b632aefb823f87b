"""Asynchronous runs on true processes: live, with a loss, resumed; each is repeated from its record on another layout."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.watching import WatchedRun
from tests.projects import Project

pytestmark = pytest.mark.ray

RUN = ("conf=digits", "sync=bap", "sync.rest_every=10", "output=json")


def rests_of(project: Project, run_id: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (project.folder(run_id) / "rests.jsonl").read_text().splitlines()]


def identity_of(project: Project, run_id: str) -> str:
    return str(json.loads((project.folder(run_id) / "identity.json").read_text())["identity"])


class Repetition(WatchedRun):
    """A rerun. While it goes on, its files are in its own checkout."""

    @property
    def folder(self) -> Path:
        checkouts = self._project.path / ".orchestrator" / "worktrees"
        return next((found for found in checkouts.rglob(self.run_id) if found.is_dir()), super().folder)


def assert_repeated(project: Project, run_id: str, *layout: str) -> None:
    """Exactly, with the same rests and the same identity."""
    rerun = project.run(f"rerun={run_id}", *layout, "output=json")
    assert (rerun.report["verdict"], rerun.code) == ("exact", 0), rerun.err
    again = rerun.report["run_id"]
    assert rests_of(project, again) == rests_of(project, run_id)
    assert identity_of(project, again) == identity_of(project, run_id)


@pytest.mark.long
def test_an_asynchronous_run_that_lost_a_worker_is_repeated(digits: Project) -> None:
    run = WatchedRun(digits, *RUN, "run.steps=60", "cluster.workers=2")
    run.wait_for_steps(10)
    run.kill(run.living()[1])
    done = run.end()
    run_id = done.report["run_id"]
    assert (done.report["status"], done.report["steps"], done.report["staleness"] >= 0) == ("finished", 60, True)
    rests = rests_of(digits, run_id)
    assert ([each["rest"] for each in rests], rests[-1]["steps"]) == (list(range(len(rests))), 60)
    assert (digits.folder(run_id) / "pictures" / "clocks.png").exists()
    assert_repeated(digits, run_id, "cluster.workers=1", "topology=tree")


@pytest.mark.long
def test_an_asynchronous_run_that_was_interrupted_is_repeated_and_resumed(digits: Project) -> None:
    """As far as it came; and as a whole, once it was resumed. Two runs whose updates came in another order are told apart."""
    run = WatchedRun(digits, *RUN, "run.steps=200", "cluster.workers=2")
    run.wait_for_steps(20)
    run.process.send_signal(signal.SIGINT)
    stopped = run.end()
    run_id = stopped.report["run_id"]
    assert stopped.report["status"] == "killed"
    assert_repeated(digits, run_id, "cluster.workers=3")
    resumed = digits.run(f"resume={run_id}", "cluster.workers=3", "output=json")
    assert (resumed.report["status"], resumed.report["steps"]) == ("finished", 200)
    assert_repeated(digits, run_id, "cluster.workers=1")


@pytest.mark.long
def test_two_asynchronous_runs_differ_and_nobody_is_alarmed(digits: Project) -> None:
    runs = [digits.run(*RUN, "run.steps=40", "cluster.workers=3") for _ in range(2)]
    assert not any("ALARM" in done.err for done in runs)
    a, b = (done.report["run_id"] for done in runs)
    assert identity_of(digits, a) != identity_of(digits, b)
    compared = digits.run(f"compare={a},{b}")
    assert "the order of updates differs: first at rest " in compared.out


@pytest.mark.long
def test_a_worker_is_killed_while_a_run_is_repeated(digits: Project) -> None:
    """All workers of the repetition go back, for another heir would change bits; and the run too had lost one."""
    run = WatchedRun(digits, *RUN, "run.steps=150", "cluster.workers=3")
    run.wait_for_steps(20)
    run.kill(run.living()[2])
    run_id = run.end().report["run_id"]
    rerun = Repetition(digits, f"rerun={run_id}", "cluster.workers=3", "topology=tree", "output=json")
    rerun.wait_for_steps(10)
    rerun.kill(rerun.living()[1])
    done = rerun.end()
    assert (done.report["verdict"], done.code) == ("exact", 0), done.err
    assert [each["worker"] for each in rerun.journal("worker_lost")] == [1]
    assert rests_of(digits, rerun.run_id) == rests_of(digits, run_id)


@pytest.mark.long
def test_a_pause_of_50_ms_changes_the_order_of_updates_and_the_result(digits: Project) -> None:
    """One worker pauses in its micro-batches of step 10; the other one goes on meanwhile."""
    found = []
    for pause_at in (-1, 10):
        folder = digits.path / f"pause{pause_at}"
        folder.mkdir()
        args = {"folder": str(folder), "data": str(digits.path / "data" / "digits"), "sleep_s": 0.01}
        settings = {
            "run": {"steps": 30},
            "pipeline": {"target": "benchmarks.stalling:Stalling", "args": {**args, "pause_at": pause_at}},
            "data": {"shards": 4, "batch_size": 32},
            "cluster": {"workers": 2},
            "optimizer": {"name": "sgd", "lr": 0.1},
            "sync": {"name": "bap", "rest_every": 30},
        }
        (folder / "run.yaml").write_text(json.dumps(settings))
        done = digits.run(f"conf={folder}/run.yaml", "output=json").report
        found.append((done, rests_of(digits, done["run_id"])))
    (calm, calm_rests), (paused, paused_rests) = found
    assert calm["digest"] != paused["digest"]
    assert calm_rests[0]["updates"] != paused_rests[0]["updates"]
