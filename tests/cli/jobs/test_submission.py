"""The command that others are asked to run: the same everywhere, in the form that each of them takes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from orchestrator.cli.jobs import submit
from orchestrator.cli.jobs.templates import kubernetes, slurm
from orchestrator.cli.jobs.templates.entry import Submission, check_id, no_credentials, own_address
from orchestrator.cluster import ray_jobs as jobs
from tests.refusals import refused

pytestmark = pytest.mark.slow

CRD = json.loads(Path(__file__).with_name("rayjob_crd.json").read_text())
JOB = Submission("digits-1", "digits", ("run.name=it's", "cluster.workers=4"), "/shared/my project", 5, 1.0, 0.0)


def entrypoint(job: Submission) -> str:
    text: str = yaml.safe_load(kubernetes.manifest(job, "i", "c", "2.60.0"))["spec"]["entrypoint"]
    return text


@pytest.mark.parametrize("submitted", [Submission.joining, entrypoint])
@pytest.mark.parametrize("kuberay", [False, True])
def test_no_shell_on_the_way_changes_the_command(
    submitted: Callable[[Submission], str], kuberay: bool, tmp_path: Path
) -> None:
    """The head has a shell run it; with KubeRay a shell first has `ray job submit` put its words together for that one."""
    project = tmp_path / "my $project"
    project.mkdir()
    values = (
        "it's",
        '"$HOME"',
        "`touch executed`",
        "$(touch executed)",
        "a\\b\\",
        "zwei\nZeilen",
        "~/*",
        "{a,b}",
        "%24",
        "\u00fc\u2713",
        "!!",
    )
    overrides = tuple(f"run.name={value}" for value in values)
    job = Submission("digits-1", "digits", overrides, str(project), 5, 1.0, 0.0)
    stand_in(
        tmp_path,
        "python",
        f"""[ "$1" = -m ] || exec {sys.executable} "$@"
        exec {sys.executable} -c 'import json, os, sys; print(json.dumps([os.getcwd(), *sys.argv[1:]]))' "$@\"""",
    )
    stand_in(
        tmp_path,
        "submit",
        f"""exec {sys.executable} -c '
import subprocess, sys; sys.exit(subprocess.call(subprocess.list2cmdline(sys.argv[2:]), shell=True))' "$@\"""",
    )
    command = f"submit -- {submitted(job)} ;" if kuberay else submitted(job)
    shell = ["/bin/bash", "-ce"] if kuberay else ["/bin/sh", "-c"]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "RAY_ADDRESS": "10.0.0.1:6379"}
    done = subprocess.run([*shell, command], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [
        *(str(project), "-m", "orchestrator", "once=digits-1", "conf=digits", *overrides),
        *("output=json", "cluster.address=10.0.0.1:6379"),
    ]
    assert not list(tmp_path.rglob("executed"))


def stand_in(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\n{body}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize("gpus", [0.0, 1.0])
def test_the_manifest_is_what_kuberays_own_schema_asks_for(gpus: float) -> None:
    job = Submission("digits-1", "digits", (), "/project", 5, 2.0, gpus)
    text = kubernetes.manifest(job, "registry/image:1", "claim", "2.60.0")
    manifest = yaml.safe_load(text)
    assert "&id" not in text, "nothing of it is a reference: people edit it"
    jsonschema.validate(manifest, CRD)
    (group,) = manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["replicas"] == 5
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert (limits["cpu"], limits.get("nvidia.com/gpu")) == ("2", "1" if gpus else None)


def test_the_schema_finds_what_is_wrong() -> None:
    manifest = yaml.safe_load(kubernetes.manifest(JOB, "i", "c", "2.60.0"))
    manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replica"] = 3
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        jsonschema.validate(manifest, CRD)


def test_a_rayjob_has_a_token_and_workers_as_quick_as_the_driver() -> None:
    cluster = yaml.safe_load(kubernetes.manifest(JOB, "i", "c", "2.60.0"))["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        values = {each["name"]: each["value"] for each in container["env"]}
        assert (values["RAY_AUTH_MODE"], values["RAY_worker_niceness"]) == ("token", "0")


def test_the_batch_script_is_bash_and_asks_for_what_the_members_need(tmp_path: Path) -> None:
    project = tmp_path / "my 100% project"
    project.mkdir()
    job = Submission("d", "digits", ("run.name=it's $HOME",), str(project), 5, 2.0, 1.0, 90.0)
    text = slurm.script(job, 2, "/opt/my python")
    assert "#SBATCH --cpus-per-task=6\n#SBATCH --gpus-per-node=3\n#SBATCH --requeue\n" in text
    assert "#SBATCH --open-mode=append\n#SBATCH --signal=B:TERM@60\n" in text
    assert f'#SBATCH --output="{tmp_path}/my 100%% project/.orchestrator/d-%j.log"\n' in text
    told = ("PWD", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_worker_niceness", "RAY_USAGE_STATS_ENABLED")
    stand_in(tmp_path, "python", "\n".join(f'echo "${name}"' for name in told) + '\nprintf "%s\\n" "$@"')
    text = text.replace("/opt/my python", str(tmp_path))
    runs = [subprocess.run(["bash"], input=text, capture_output=True, text=True, check=True) for _ in range(2)]
    (place, mode, token, *values), (_, _, other, *_) = (done.stdout.splitlines() for done in runs)
    asked = ["-m", "orchestrator.cluster.slurm", "6", "90", "python", "-m", "orchestrator", "once=d", "conf=digits"]
    assert [place, mode, *values] == [str(project), "token", "0", "0", *asked, "run.name=it's $HOME", "output=json"]
    assert re.fullmatch("[0-9a-f]{64}", token)
    assert token != other


@pytest.mark.parametrize(
    "override",
    [
        "tracking.uri=http://me:hush@host:5000",
        "checkpoint.uri=s3://AKIA0123456789ABCDEF:hush@bucket/x",
        "pipeline.args.password=hush",
        "pipeline.args.login=me:ghp_0123456789abcdefghijABCDEFGHIJ012345",
    ],
)
def test_a_job_shows_no_credential(override: str) -> None:
    with refused("job.credential", override.partition("=")[0]) as caught:
        no_credentials(["run.steps=3", override])
    assert "hush" not in f"{caught.value} {caught.value.remedy}"


@pytest.mark.parametrize(
    "override",
    [
        "tracking.uri=postgresql://me@host/db",
        "tracking.uri=http://host:5000",
        "pipeline.args.password=${oc.env:PASSWORD}",
        "tracking.uri=http://me:${oc.env:PASSWORD}@host:5000",
        "pipeline.args.tokens=5",
        "privacy.secret=/home/me/secret",
    ],
)
def test_a_job_may_name_users_and_variables(override: str) -> None:
    no_credentials([override])


def test_the_log_of_a_slurm_job_has_a_folder(tmp_path: Path) -> None:
    job = Submission("d", "digits", (), str(tmp_path), 1, 1.0, 0.0)
    assert submit.submit(job, "slurm", {"nodes": "1"}).manifest is not None
    assert (tmp_path / ".orchestrator" / ".gitignore").read_text() == "*\n"


def test_what_cannot_be_submitted_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with refused("job.id"):
        check_id("My_Job")
    with refused("job.address"):
        own_address(["cluster.address=a:1"])
    with refused("job.option-required", "image"):
        submit.submit(JOB, "kubernetes", {})
    with refused("job.nodes"):
        submit.submit(JOB, "slurm", {"nodes": "0"})
    with refused("job.project", r"a\ntouch executed"):  # would be a line of the batch script
        submit.submit(replace(JOB, project="/shared/a\ntouch executed\n#"), "slurm", {})
    with refused("job.place"):
        submit.submit(JOB, "mars", {})
    for to, options in (("slurm", {"image": "i"}), ("kubernetes", {"nodes": "2"}), ("http://here:1", {"claim": "c"})):
        ((key, value),) = options.items()
        with refused("job.option-unused", f"{key}={value}"):
            submit.submit(JOB, to, {**dict.fromkeys(("image", "claim", "nodes")), **options})
    for to in ("ftp://here:1", "http://", "httpx://here:1"):
        with refused("job.place"):
            submit.submit(JOB, to, {})
    with refused("job.place"):
        submit.where("x", "slurm")
    with refused("job.unknown-here"):
        submit.where("x", None)


def test_a_head_whose_agent_does_not_come_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Agentless:
        def __init__(self, url: str) -> None:
            assert url == "http://here:1"

        def list_jobs(self) -> list[object]:
            return []

        def submit_job(self, **_: object) -> None:
            raise RuntimeError("No available agent to submit job, please try again later.")

    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", Agentless)
    monkeypatch.setattr(jobs, "_AGENT_S", 0.0)
    with refused("ray.no-agent") as caught:
        jobs.Jobs("http://here:1").submit("digits-1", "true")
    assert caught.value.remedy is not None
    assert "dashboard_agent.log" in caught.value.remedy
