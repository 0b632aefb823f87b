"""Jobs that are lost and started again: one run, no step twice, the digest of an undisturbed one."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.cli.alone import alone
from tests.projects import PATIENCE_S, REPOSITORY, Project, make_digits, packages

RUN = ("conf=digits", "run.steps=120", "checkpoint.every=10", "cluster.workers=2")
MARK_OF_HEAD = "TEST_HEAD"


def await_checkpoint(project: Project) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not any(
        '"checkpoint_saved"' in file.read_text() for file in project.path.glob(".orchestrator/*/journal.jsonl")
    ):
        assert time.monotonic() < deadline, "no checkpoint was made"
        time.sleep(0.05)  # looks at a file that another process writes


@pytest.mark.ray
@pytest.mark.long
def test_a_launch_under_an_id_that_was_killed_goes_on_and_is_not_repeated(tmp_path: Path) -> None:
    project = make_digits(tmp_path / "digits")
    first = project.start("once=again", *RUN, "output=json")
    await_checkpoint(project)
    first.kill()
    first.communicate()
    second = project.run("once=again", *RUN, "output=json")
    assert second.code == 0, second.err
    third = project.run("once=again", *RUN, "output=json")
    assert third.code == 0, third.err
    assert "has finished already" in third.err
    assert second.report["digest"] == third.report["digest"] == alone(project, "digits", *RUN[1:]).digest
    assert len(project.runs()) == 1
    assert project.leftovers() == []


@dataclass(frozen=True)
class Head:
    """A Ray that takes jobs. url: of its dashboard."""

    url: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """All of it at once, and what it runs: its host is gone."""
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK_OF_HEAD}={self.url}".encode() in (place / "environ").read_bytes().split(b"\0"):
                    os.kill(int(place.name), signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def head(project: Project, folder: Path) -> Iterator[Head]:
    names = ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port")
    ports = [free_port() for _ in names]
    environment = {
        **project.environment(),
        "PYTHONPATH": f"{project.environment()['PYTHONPATH']}:{packages('dashboard')}",
    }
    url = f"http://127.0.0.1:{ports[1]}"
    environment |= {
        MARK_OF_HEAD: url,
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = ["ray", "start", "--head", "--block", "--num-cpus=4", "--include-dashboard=true", f"--temp-dir={folder}"]
    command += ["--disable-usage-stats", "--object-store-memory=83886080"]
    command += [f"--{name}={port}" for name, port in zip(names, ports, strict=True)]
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    found = Head(url, process)
    try:
        for address in (f"{url}/api/version", f"http://127.0.0.1:{ports[2]}/api/local_raylet_healthz"):
            await_answer(address, process)
        yield found
    finally:
        found.kill()


def await_answer(address: str, process: subprocess.Popen[bytes]) -> None:
    """Until the dashboard, or the agent of the head that starts its jobs, listens there."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(address, timeout=60):
                return
        except urllib.error.HTTPError:  # it listens, and wants the token
            return
        except OSError:
            assert process.poll() is None
            assert time.monotonic() < deadline, f"nothing listens at {address}"
            time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port if port < 10_000 or port > 20_000 else free_port()  # where Ray's workers listen


def await_end(project: Project, name: str, *to: str) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        done = project.run(f"status={name}", *to, "output=json")
        assert done.code == 0, done.err
        if done.report["status"] not in ("pending", "running"):
            return str(done.report["status"])
        assert time.monotonic() < deadline


@pytest.mark.ray
@pytest.mark.long
def test_a_job_whose_head_was_killed_is_submitted_again_and_goes_on(tmp_path: Path) -> None:
    project = make_digits(tmp_path / "digits")
    project.variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    short = Path(project.temporary)
    job = ("submit", *RUN, "id=job-1")
    with head(project, short / "a") as first:
        submitted = project.run(*job, f"to={first.url}", "output=json")
        assert submitted.code == 0, submitted.err
        assert submitted.report["new"]
        again = project.run(*job, f"to={first.url}", "output=json")
        assert not again.report["new"]
        await_checkpoint(project)
        first.kill()
    with head(project, short / "b") as second:
        resubmitted = project.run(*job, f"to={second.url}", "output=json")
        assert resubmitted.code == 0, resubmitted.err
        assert await_end(project, "job-1") == "succeeded"
        logs = project.run("logs=job-1").out
        assert "going on with run" in logs
    (run_id,) = project.runs()
    report = json.loads(next(line for line in reversed(logs.splitlines()) if line.startswith("{")))
    assert report["run_id"] == run_id
    assert report["digest"] == alone(project, "digits", *RUN[1:]).digest


@pytest.mark.ray
@pytest.mark.long
def test_a_rayjob_runs_what_was_submitted_and_nothing_that_stands_in_its_settings(tmp_path: Path) -> None:
    """Its entrypoint goes the way of KubeRay 1.7: `bash -ce`, `ray job submit`, the shell of the head."""
    project = make_digits(tmp_path / "my digits")
    project.variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    name = """it's "$HOME" `touch executed` $(touch executed) \\ ~ \u00fc %24 {a,b} *"""
    words = ("conf=digits", "run.steps=4", "cluster.workers=1", f"run.name={name}")
    made = project.run("submit", "to=kubernetes", "image=i", "claim=c", "id=job-2", *words)
    assert made.code == 0, made.err
    entrypoint = yaml.safe_load(made.out)["spec"]["entrypoint"]
    with head(project, Path(project.temporary) / "a") as first:
        to = f"--address {first.url}"
        way = f"ray job submit {to} --no-wait --submission-id job-2 -- {entrypoint} ; ray job logs {to} --follow job-2"
        project.variables["PYTHONPATH"] = f"{REPOSITORY}:{packages('dashboard')}"
        done = project.shell(f"exec /bin/bash -ce {shlex.quote(way)}")
        assert done.code == 0, done.err
        assert await_end(project, "job-2", f"to={first.url}") == "succeeded", done.out
    with contextlib.closing(sqlite3.connect(project.path / ".orchestrator" / "mlflow.db")) as store:
        assert store.execute("select name, status from runs").fetchall() == [(name, "FINISHED")]
    assert not list(tmp_path.rglob("executed"))
