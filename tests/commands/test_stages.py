"""The page about stages runs as it stands: workers with a stage each give the digest of those with the whole model."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path

import pytest

from tests.commands.watching import WatchedRun
from tests.projects import REPOSITORY, Project

PAGE = (REPOSITORY / "docs" / "model-parallel.md").read_text()
UNSPLIT = "c021ea3ef672ca816559ddca4eab9a9b6ad9a81522e7e166290a60f932131241"  # conf=digits run.steps=60


@pytest.mark.long
@pytest.mark.ray
def test_the_page_works_word_for_word(digits: Project) -> None:
    (block,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    launch, rerun = (digits.shell(line) for line in block.splitlines())
    assert launch.code == rerun.code == 0, (launch.err, rerun.err)
    assert UNSPLIT in launch.err
    (told,) = re.findall(
        r"the model of 38,378 parameters is cut: stage 0 from the first layers \((.*?) parameters", launch.err
    )
    assert 0 < int(told.replace(",", "")) < 38_378
    assert rerun.err.splitlines()[-1] == "exact: all 60 steps and the final parameters agree to the last bit"
    assert digits.leftovers() == []


def wait_for_recoveries(run: WatchedRun, count: int) -> None:
    run.wait(lambda: sum(each["kind"] == "lost" for each in run.journal("recovered")) >= count or None)


@pytest.mark.ray
def test_a_killed_worker_costs_no_step_while_another_has_its_stage(digits: Project) -> None:
    run = WatchedRun(digits, "conf=digits", "run.steps=60", "cluster.workers=4", "cluster.stages=2", "output=json")
    (first, *_) = run.wait_for("generation_started")
    assert first["stages"] == [0, 1, 0, 1]
    run.wait_for_steps(3)
    run.kill(run.living()[first["members"][1]])
    done = run.end()
    assert (done.code, done.report["digest"]) == (0, UNSPLIT), done.err
    lost = [each for each in done.report["recoveries"] if each["kind"] == "lost"]
    assert [each["steps_lost"] <= 1 for each in lost] == [True]
    assert digits.leftovers() == []


@pytest.mark.long
@pytest.mark.ray
def test_a_worker_is_killed_in_each_place_of_the_mesh_and_the_run_goes_on_elsewhere(digits: Project) -> None:
    """Two of three columns are lost, one worker after the other. No step is lost, but at most one that only the dead had
    applied is computed again. Then the run is interrupted, resumed with the whole model on each worker, and rerun in stages."""
    run = WatchedRun(digits, "conf=digits", "run.steps=60", "cluster.workers=6", "cluster.stages=2", "output=json")
    (first, *_) = run.wait_for("generation_started")
    assert first["stages"] == [0, 1, 0, 1, 0, 1]
    killed = first["members"][:4]  # the others are enough to go on, whenever replacements come
    for number, worker in enumerate(killed):
        run.wait_for_steps(run.steps + 2)
        run.kill(run.living()[worker])
        wait_for_recoveries(run, number + 1)
    run.process.send_signal(signal.SIGINT)
    stopped = run.end()
    assert stopped.code == 130, stopped.err
    assert {each["worker"] for each in run.journal("worker_lost")} == set(killed)
    lost = [each for each in stopped.report["recoveries"] if each["kind"] != "joined"]
    assert [(each["kind"], each["steps_lost"] <= 1) for each in lost] == [("lost", True)] * 4
    done = digits.run("resume=last", "cluster.workers=3", "cluster.stages=1", "output=json")
    assert (done.code, done.report["digest"]) == (0, UNSPLIT), done.err
    rerun = digits.run(f"rerun={run.run_id}", "cluster.workers=3", "cluster.stages=2", "topology=tree", "output=json")
    assert (rerun.code, rerun.report["verdict"]) == (0, "exact"), rerun.err
    assert digits.leftovers() == []


@pytest.mark.long
@pytest.mark.ray
def test_a_model_trains_in_stages_within_a_memory_in_which_no_worker_has_it_whole(tmp_path: Path) -> None:
    """The limit is of each worker's addresses (RLIMIT_AS): nine tenths of what the unsplit worker takes."""
    project, told = Project(tmp_path / "project"), tmp_path / "told"
    (project.path / "conf").mkdir(parents=True)
    shutil.copy2(Path(__file__).with_name("narrow.py"), project.path)
    (project.path / "conf" / "narrow.yaml").write_text(
        "run: {steps: 2, seed: 1}\n"
        f"pipeline: {{target: 'narrow:Narrow', args: {{told: {told}}}}}\n"
        "data: {shards: 4, batch_size: 8}\n"
        "optimizer: {name: adamw, lr: 0.001}\n"
        "gradient: {clip: 1.0}\n"
    )
    project.commit()
    free = project.run("conf=narrow", "output=json")
    limit = f"pipeline.args.headroom={int(told.read_text()) * 9 // 10}"
    whole = project.run("conf=narrow", limit, "output=json")
    split = project.run("conf=narrow", limit, "cluster.workers=2", "cluster.stages=2", "output=json")
    assert whole.code == 1, limit
    assert re.search("of memory are available|can't allocate memory|cannot be mapped", whole.report["error"]["message"])
    assert "cluster.stages" in whole.report["error"]["remedy"]
    assert "Traceback" not in whole.err
    assert split.code == 0, (limit, split.err)
    assert split.report["digest"] == free.report["digest"]
    assert project.leftovers() == []
