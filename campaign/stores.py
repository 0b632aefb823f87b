"""Stores of a launch that go away and come back: an MLflow server that is killed and started again, an S3 server that hangs.

A launch with one keeps its record, or its checkpoints, there. While the store is away, training has to go on; at the end the
store has to have everything.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from campaign import hosts
from tests.cluster.conftest import wait_for_line
from tests.projects import REPOSITORY
from tests.tracking.server import Server

MLFLOW: Final = "MLflow away"
S3: Final = "S3 hangs"
_S3_PACKAGES = REPOSITORY / ".venv" / "s3"


class Store(Protocol):
    """arguments, variables: of commands that use it; before: what starts them; `go` and `come` as often as wanted."""

    @property
    def arguments(self) -> tuple[str, ...]: ...

    @property
    def before(self) -> tuple[str, ...]: ...

    @property
    def variables(self) -> Mapping[str, str]: ...

    def go(self) -> None: ...

    def come(self) -> None: ...

    def lacks(self, report: Mapping[str, Any], steps: int) -> list[str]:
        """What it has not got of the run, in sentences. report: at the end; steps: of the run."""
        ...

    def close(self) -> None: ...


def of(kind: str, told: Path, project: Path) -> Store:
    """A new one, which answers. told: the folder of the launch's words; project: of what is launched."""
    if kind in hosts.KINDS:
        return hosts.TwoHosts(kind, project, told)
    folder = told / "store"
    folder.mkdir()
    return Mlflow(folder) if kind == MLFLOW else Bucket(folder)


class Mlflow:
    before: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        self._server = Server(folder)
        self._server.start()
        self.arguments = (f"tracking.uri={self._server.uri}", "run.supervised=false")
        self.variables: dict[str, str] = {}

    def go(self) -> None:
        self._server.stop()

    def come(self) -> None:
        self._server.start()

    def lacks(self, report: Mapping[str, Any], steps: int) -> list[str]:
        run = self._asked(f"runs/get?run_id={report['run_id']}")["run"]
        tags = {each["key"]: each["value"] for each in run["data"]["tags"]}
        losses = self._asked(f"metrics/get-history?run_id={report['run_id']}&metric_key=train/loss&max_results=25000")
        found = [] if run["info"]["status"] == "FINISHED" else [f"record: MLflow says {run['info']['status']}"]
        if tags.get("digest") != report["digest"]:
            found.append("record: MLflow has not the digest")
        if {each["step"] for each in losses["metrics"]} != set(range(steps)):
            found.append(f"record: MLflow has the loss of {len(losses['metrics'])} of {steps} steps")
        return found

    def close(self) -> None:
        self._server.stop()

    def _asked(self, what: str) -> dict[str, Any]:
        answer = self._server.get(f"/api/2.0/mlflow/{what}")
        assert answer is not None, what
        told: dict[str, Any] = json.loads(answer)
        return told


class Bucket:
    before: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        assert _S3_PACKAGES.exists(), "there is no S3 server yet: make s3"
        path = f"{_S3_PACKAGES}:{REPOSITORY}"
        access = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1"}
        (folder / "there").touch()  # with which the bucket is made
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.s3_server", "0", str(folder)],
            cwd=REPOSITORY,
            env={**access, "PYTHONPATH": path, "PATH": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        url = wait_for_line(self._process, "url ").split()[1]
        self.arguments = ("checkpoint.uri=s3://bucket/here",)
        self.variables = {**access, "AWS_ENDPOINT_URL": url, "PYTHONPATH": f"{REPOSITORY}:{_S3_PACKAGES}"}

    def go(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def come(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def lacks(self, report: Mapping[str, Any], steps: int) -> list[str]:  # noqa: ARG002
        return []  # a checkpoint that was not saved is passed over, and the terminal tells of it

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
