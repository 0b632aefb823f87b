"""Jobs of a true Slurm: each owns its Ray, ends as its command does, and loses no step when it is asked to end."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.alone import alone
from tests.cli.slurm import Slurm, slurm_of_two_nodes
from tests.projects import REPOSITORY, Project, make_digits, packages

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.slurm]
SHORT, LONG = (
    ("conf=digits", "cluster.workers=2", "run.steps=120"),
    ("conf=digits", "cluster.workers=2", "run.steps=600"),
)


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with slurm_of_two_nodes() as found:
        yield found


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_digits(tmp_path / "my digits")


def script(project: Project, *words: str) -> str:
    done = project.run("submit", "to=slurm", *words)
    assert done.code == 0, done.err
    return done.out


def report(slurm: Slurm, job: str) -> dict[str, object]:
    """The last line of the job's log."""
    told: dict[str, object] = json.loads(slurm.log(job).splitlines()[-1])
    return told


def test_two_jobs_and_a_launch_of_one_user_share_a_node(slurm: Slurm, project: Project) -> None:
    # A head has one server more if gRPC is there.
    project.variables["PYTHONPATH"] = f"{REPOSITORY}:{packages('dashboard')}"
    quoted = "run.name=it's $HOME `id`"
    wide = slurm.submit(project, script(project, *SHORT, "id=wide", "nodes=2", quoted), "--nodelist=n1,n2")
    narrow = slurm.submit(project, script(project, *SHORT, "id=narrow"), "--nodelist=n1")
    launched = project.run(*SHORT, "output=json")
    expected = alone(project, "digits", *SHORT[1:]).digest
    assert launched.report["digest"] == expected, launched.err
    for job, nodes in ((wide, "n[1-2]"), (narrow, "n1")):
        end = slurm.end_of(job)
        assert (end["JobState"], end["ExitCode"], end["NodeList"]) == ("COMPLETED", "0:0", nodes), slurm.log(job)
        assert report(slurm, job)["digest"] == expected
        assert "nice level" not in slurm.log(job)
        assert "differs" not in slurm.log(job)
    assert "it's $HOME `id`: finished" in slurm.log(wide)
    assert project.leftovers() == []


def test_a_job_that_is_asked_to_end_saves_a_checkpoint_and_goes_on_where_it_was(slurm: Slurm, project: Project) -> None:
    """As the time limit and a preemption ask (the script alone), by a requeue and by scancel (every process)."""
    text = script(project, *LONG, "id=often", "nodes=2", "checkpoint.every=null")
    asked = slurm.submit(project, text)
    done = interrupted(slurm, project, asked, 0, "scancel", "--batch", "--signal=TERM", asked)
    end = slurm.end_of(asked)
    assert (end["JobState"], end["ExitCode"]) == ("FAILED", "130:0")
    again = slurm.submit(project, text)
    done = interrupted(slurm, project, again, done, "scontrol", "requeue", again)
    slurm.wait(lambda: slurm.show(again)["JobState"] == "PENDING", again)
    before = slurm.log(again)
    slurm.call("scontrol", "update", f"JobId={again}", "StartTime=now")
    done = interrupted(slurm, project, again, done, "scancel", again)
    assert slurm.end_of(again)["JobState"] == "CANCELLED"
    assert slurm.log(again).startswith(before)
    last = slurm.submit(project, text)
    assert slurm.end_of(last)["JobState"] == "COMPLETED", slurm.log(last)
    assert f"going on from the checkpoint of step {done}\n" in slurm.log(last)
    assert report(slurm, last)["digest"] == alone(project, "digits", *LONG[1:]).digest
    assert len(project.runs()) == 1
    assert project.leftovers() == []


def interrupted(slurm: Slurm, project: Project, job: str, before: int, *command: str) -> int:
    """Call the command when the run has done more steps than before; the steps that its checkpoint then holds."""
    lines = slurm.log(job).count("\n{")
    slurm.wait(lambda: steps(project) > before + 10, job)
    slurm.call(*command)
    slurm.wait(lambda: slurm.log(job).count("\n{") > lines, job)
    told = report(slurm, job)
    done = told["steps"]
    assert isinstance(done, int)
    assert done > before + 10
    assert f"the newest checkpoint holds {done} steps" in slurm.log(job)
    if before:
        assert f"going on from the checkpoint of step {before}\n" in slurm.log(job)
    return done


def steps(project: Project) -> int:
    return sum(file.read_text().count("\n") for file in project.path.glob(".orchestrator/*/trace.jsonl"))


def test_a_job_whose_ray_does_not_start_fails_and_nothing_goes_on_after_it(
    slurm: Slurm, project: Project, tmp_path: Path
) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    (tmp_path / "ray").write_text("#!/bin/bash\necho this is no Ray\nexit 3\n")
    (tmp_path / "ray").chmod(0o755)
    text = script(project, *SHORT, "id=never")
    assert str(Path(sys.executable).parent) in text
    job = slurm.submit(project, text.replace(str(Path(sys.executable).parent), str(tmp_path)))
    after = slurm.submit(project, "#!/bin/bash\ntrue\n", f"--dependency=afterok:{job}", "--output=/dev/null")
    end = slurm.end_of(job)
    assert (end["JobState"], end["ExitCode"]) == ("FAILED", "1:0")
    assert "error: Ray could not be started on n1: `ray start` ended with exit code 3\nthis is no Ray" in slurm.log(job)
    slurm.wait(lambda: slurm.show(after)["Reason"] == "DependencyNeverSatisfied", after)
    assert project.runs() == {}
    assert project.leftovers() == []
