"""The page about stages runs as it stands: workers with a stage each give the digest of those with the whole model."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

from orchestrator.numerics.digests import state_digest
from tests.cli.alone import alone, assert_as_alone
from tests.cli.watching import WatchedRun
from tests.projects import REPOSITORY, Done, Project

PAGE = (REPOSITORY / "docs" / "model-parallel.md").read_text()


@pytest.fixture(scope="module")
def unsplit(digits: Project) -> str:
    """The digest of the page's run by a worker with the whole model."""
    return alone(digits, "digits", "run.steps=60").digest


@pytest.mark.long
@pytest.mark.ray
def test_the_page_works_word_for_word(digits: Project, unsplit: str) -> None:
    block, _of_the_llama = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    launch, rerun = (digits.shell(line) for line in block.splitlines())
    assert launch.code == rerun.code == 0, (launch.err, rerun.err)
    assert unsplit in launch.err
    (told,) = re.findall(
        r"the model of 38,378 parameters is cut: stage 0 from the first layers \((.*?) parameters", launch.err
    )
    assert 0 < int(told.replace(",", "")) < 38_378
    assert rerun.err.splitlines()[-1] == "exact: all 60 steps and the final parameters agree to the last bit"
    assert digits.leftovers() == []


def wait_for_recoveries(run: WatchedRun, count: int) -> None:
    run.wait(lambda: sum(each["kind"] == "lost" for each in run.journal("recovered")) >= count or None)


@pytest.mark.long
@pytest.mark.ray
def test_a_killed_worker_costs_no_step_while_another_has_its_stage(digits: Project, unsplit: str) -> None:
    run = WatchedRun(digits, "conf=digits", "run.steps=60", "cluster.workers=4", "cluster.stages=2", "output=json")
    (first, *_) = run.wait_for("generation_started")
    assert first["stages"] == [0, 1, 0, 1]
    run.wait_for_steps(3)
    run.kill(run.living()[first["members"][1]])
    done = run.end()
    assert (done.code, done.report["digest"]) == (0, unsplit), done.err
    lost = [each for each in done.report["recoveries"] if each["kind"] == "lost"]
    assert [each["steps_lost"] <= 1 for each in lost] == [True]
    assert digits.leftovers() == []


@pytest.mark.long
@pytest.mark.ray
def test_a_worker_is_killed_in_each_place_of_the_mesh_and_the_run_goes_on_elsewhere(
    digits: Project, unsplit: str
) -> None:
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
    assert (done.code, done.report["digest"]) == (0, unsplit), done.err
    rerun = digits.run(f"rerun={run.run_id}", "cluster.workers=3", "cluster.stages=2", "topology=tree", "output=json")
    assert (rerun.code, rerun.report["verdict"]) == (0, "exact"), rerun.err
    of_stages, whole = (digits.folder(run_id) / "model.safetensors" for run_id in (rerun.report["run_id"], run.run_id))
    assert of_stages.read_bytes() == whole.read_bytes()
    assert digits.leftovers() == []


def assert_has_no_memory(done: Done) -> None:
    assert done.code == 1, done.out
    assert re.search("of memory are available|can't allocate memory|cannot be mapped", done.report["error"]["message"])
    assert "cluster.stages" in done.report["error"]["remedy"]
    assert "Traceback" not in done.err


def narrow(folder: Path, told: Path, steps: int) -> Project:
    project = Project(folder)
    (project.path / "conf").mkdir(parents=True)
    shutil.copy2(Path(__file__).with_name("narrow.py"), project.path)
    (project.path / "conf" / "narrow.yaml").write_text(
        f"run: {{steps: {steps}, seed: 1}}\n"
        f"pipeline: {{target: 'narrow:Narrow', args: {{told: {told}}}}}\n"
        "data: {shards: 4, batch_size: 8}\n"
        "optimizer: {name: adamw, lr: 0.001}\n"
        "gradient: {clip: 1.0}\n"
    )
    project.commit()
    return project


@pytest.mark.long
@pytest.mark.ray
def test_the_weights_are_those_of_the_unsplit_model_without_periodic_checkpoints(digits: Project) -> None:
    short = ("conf=digits", "run.steps=12", "checkpoint.every=null")
    done = digits.run(*short, "cluster.workers=3", "cluster.stages=2", "output=json")
    assert_as_alone(digits, done, alone(digits, "digits", *short[1:]))
    whole = digits.run(*short, "cluster.workers=1", "output=json")
    files = [digits.folder(each.report["run_id"]) / "model.safetensors" for each in (done, whole)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert not list(files[0].parent.glob("*.stage-*"))


@pytest.mark.long
@pytest.mark.ray
def test_a_model_trains_in_stages_within_a_memory_in_which_no_worker_has_it_whole(tmp_path: Path) -> None:
    """The limit is of each worker's addresses (RLIMIT_AS): nine tenths of what the unsplit worker takes."""
    told = tmp_path / "told"
    project = narrow(tmp_path / "project", told, steps=2)
    free = project.run("conf=narrow", "output=json")
    limit = f"pipeline.args.headroom={int(told.read_text()) * 9 // 10}"
    whole = project.run("conf=narrow", limit, "output=json")
    split = project.run("conf=narrow", limit, "cluster.workers=2", "cluster.stages=2", "output=json")
    assert_has_no_memory(whole)
    assert split.code == 0, (limit, split.err)
    assert split.report["digest"] == free.report["digest"]
    assert project.leftovers() == []


@pytest.mark.long
@pytest.mark.ray
def test_what_is_interrupted_within_a_memory_goes_on_in_more_stages_and_not_whole(tmp_path: Path) -> None:
    """The limit is part of the run, so a resume has it too. The attempt that is refused takes nothing from the run."""
    told, folder = tmp_path / "told", tmp_path / "project"
    project = narrow(folder, told, steps=8)
    free = project.run("conf=narrow", "output=json")
    limit = f"pipeline.args.headroom={int(told.read_text()) * 9 // 10}"
    run = WatchedRun(project, "conf=narrow", limit, "cluster.workers=2", "cluster.stages=2", "output=json")
    run.wait_for_steps(2)
    run.process.send_signal(signal.SIGINT)
    stopped = run.end()
    assert stopped.code == 130, stopped.err
    before = run.steps
    assert 2 <= before < 8
    assert_has_no_memory(project.run("resume=last", "cluster.workers=1", "cluster.stages=1", "output=json"))
    assert run.steps == before
    done = project.run("resume=last", "cluster.workers=4", "cluster.stages=4", "output=json")
    assert (done.code, done.report["digest"]) == (0, free.report["digest"]), (limit, done.err)
    assert state_digest(load_file(run.folder / "model.safetensors")) == done.report["digest"]
    assert project.leftovers() == []
