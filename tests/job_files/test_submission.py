"""What others are asked to run: the same command everywhere, in the form that each of them takes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from orchestrator.cluster import ray_jobs as jobs
from orchestrator.commands import submit
from orchestrator.errors import ClusterUnavailable, UsageError
from orchestrator.job_files import kubernetes, slurm
from orchestrator.job_files.entry import Submission, check_id, own_address

CRD = json.loads(Path(__file__).with_name("rayjob_crd.json").read_text())
JOB = Submission("digits-1", "digits", ("run.name=it's", "cluster.workers=4"), "/shared/my project", 5, 1.0, 0.0)


def test_the_command_survives_every_shell_on_its_way() -> None:
    for command in (
        JOB.command("$RAY_ADDRESS"),
        yaml.safe_load(kubernetes.manifest(JOB, "i", "c", "2.60.0"))["spec"]["entrypoint"],
    ):
        words = shlex.split(command)
        inner = shlex.split(words[2]) if words[0] == "bash" else words
        assert inner == [
            *("cd", "/shared/my project", "&&", "exec", "python", "-m", "orchestrator", "once=digits-1", "conf=digits"),
            *("run.name=it's", "cluster.workers=4", "cluster.address=$RAY_ADDRESS", "output=json"),
        ]


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


def test_the_batch_script_is_bash_and_asks_for_what_the_members_need(tmp_path: Path) -> None:
    text = slurm.script(Submission("d", "digits", (), str(tmp_path), 5, 2.0, 1.0), 2, "/opt/python")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert "#SBATCH --cpus-per-task=6\n#SBATCH --gpus-per-node=3\n#SBATCH --requeue\n" in text
    # With stand-ins for Slurm's commands the script runs the command of the job with the address of the head.
    stand_ins = {
        "scontrol": "echo localhost",
        "srun": '"$@"',
        "ray": 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"',
        "python": 'printf "%s\\n" "$@"',
    }
    for name, body in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    text = text.replace("/opt/python", str(tmp_path))
    environment = {**os.environ, "SLURM_JOB_NODELIST": "localhost"}
    done = subprocess.run(["bash"], input=text, capture_output=True, text=True, check=True, env=environment)
    asked = ["-m", "orchestrator", "once=d", "conf=digits", "cluster.address=127.0.0.1:6379", "output=json"]
    assert done.stdout.splitlines() == asked


def test_what_cannot_be_submitted_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="id=My_Job: expected lower-case letters"):
        check_id("My_Job")
    with pytest.raises(UsageError, match="a job joins the Ray that runs it"):
        own_address(["cluster.address=a:1"])
    with pytest.raises(UsageError, match="image: required with to=kubernetes"):
        submit.submit(JOB, "kubernetes", {})
    with pytest.raises(UsageError, match="nodes=0: expected a number of at least 1"):
        submit.submit(JOB, "slurm", {"nodes": "0"})
    with pytest.raises(UsageError, match="to=mars: it is http://HOST:8265 of a Ray, kubernetes or slurm"):
        submit.submit(JOB, "mars", {})
    for to, options in (("slurm", {"image": "i"}), ("kubernetes", {"nodes": "2"}), ("http://here:1", {"claim": "c"})):
        ((key, value),) = options.items()
        with pytest.raises(UsageError, match=f"{key}={value}: only to=(slurm|kubernetes) has a use for it"):
            submit.submit(JOB, to, {**dict.fromkeys(("image", "claim", "nodes")), **options})
    for to in ("ftp://here:1", "http://", "httpx://here:1"):
        with pytest.raises(UsageError, match=f"to={to}: it is http://HOST:8265 of a Ray, kubernetes or slurm"):
            submit.submit(JOB, to, {})
    with pytest.raises(UsageError, match=r"to=slurm: it is http://HOST:8265 of a Ray$"):
        submit.where("x", "slurm")
    with pytest.raises(UsageError, match="no job x was submitted to a Ray from here"):
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
    with pytest.raises(ClusterUnavailable, match="has had no agent that starts jobs for 0 s") as caught:
        jobs.Jobs("http://here:1").submit("digits-1", "true")
    assert caught.value.remedy is not None
    assert "dashboard_agent.log" in caught.value.remedy
