"""Stores of a launch that go away and come back: an MLflow server that is killed and started again, an S3 server that hangs or
answers with errors, a disk that is full.

A launch with one keeps its record, or its checkpoints, there. While the store is away, training has to go on; at the end the
store has to have everything; of checkpoints a whole one, saved after it came back.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

from campaign import hosts, leftovers
from campaign.plans import Launch
from campaign.proxies import Proxy
from orchestrator.checkpoint.catalog import Catalog
from orchestrator.checkpoint.storage import LocalFolder
from tests.cluster.conftest import wait_for_line
from tests.projects import REPOSITORY
from tests.provenance.tracking.server import Server

MLFLOW: Final = "MLflow away"
S3: Final = "S3 hangs"
ERRORS: Final = "bucket errors"
DISK: Final = "disk full"
_DISK_BYTES: Final = 1 << 20
_S3_PACKAGES = REPOSITORY / ".venv" / "s3"
_ASKS: Final = {  # the server looks whether somebody signed, and not what
    "Authorization": "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
}


class Store(Protocol):
    """arguments, variables: of commands that use it; before: what starts them; `go` and `come` as often as wanted;
    has_checkpoints: of the run; met: how many requests had which fate, where it is asked through a proxy."""

    has_checkpoints: bool

    @property
    def met(self) -> Mapping[str, int]: ...

    @property
    def arguments(self) -> tuple[str, ...]: ...

    @property
    def before(self) -> tuple[str, ...]: ...

    @property
    def variables(self) -> Mapping[str, str]: ...

    def go(self) -> None: ...

    def come(self) -> None: ...

    def lacks(self, report: Mapping[str, Any], steps: int) -> list[str]:
        """The parts of the run that it has not got, in sentences. report: at the end; steps: of the run."""
        ...

    def close(self) -> None: ...


def of(kind: str, launch: Launch, told: Path, project: Path, dice: Random) -> Store:
    """A new one, which answers. told: the folder of the launch's words; project: of what is launched; dice: of what it does
    while it is away."""
    if kind in hosts.KINDS:
        return hosts.SomeHosts(kind, launch, project, told)
    folder = told / "store"
    folder.mkdir()
    made: dict[str, Callable[[], Store]] = {
        MLFLOW: lambda: Mlflow(folder),
        S3: lambda: Bucket(folder),
        ERRORS: lambda: Troubled(folder, dice),
        DISK: lambda: Disk(folder),
    }
    return made[kind]()


def missing(kind: str | None) -> str | None:
    """Why there can be none of it here; None where there can."""
    if kind in (S3, ERRORS) and not _S3_PACKAGES.exists():
        return f"{kind} needs an S3 server: make s3"
    if kind == DISK and os.geteuid() != 0:
        return f"{kind} needs root, who alone may mount the small disk that is filled"
    if kind in hosts.KINDS and (os.geteuid() != 0 or shutil.which("ip") is None):
        return f"{kind} needs root and the program ip (iproute2), which make hosts of network namespaces"
    return None


def _newest(folder: LocalFolder) -> list[str]:
    """The faults of the newest checkpoint that lies there."""
    found = Catalog(folder, 1).latest()
    return [f"store: {reason}" for reason in found.reasons] + (
        [] if found.manifest else ["store: it has no checkpoint"]
    )


class Mlflow:
    before: tuple[str, ...] = ()
    has_checkpoints = False
    met: Mapping[str, int] = {}

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
    has_checkpoints = True
    met: Mapping[str, int] = {}

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        path = f"{_S3_PACKAGES}:{REPOSITORY}"
        access = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1"}
        (folder / "there").touch()  # with which the bucket is made
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.s3_server", "0", str(folder)],
            cwd=REPOSITORY,
            env={**access, "PYTHONPATH": path, "PATH": "", leftovers.VARIABLE: leftovers.mark()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._url = url = wait_for_line(self._process, "url ").split()[1]
        self.arguments = ("checkpoint.uri=s3://bucket/here",)
        self.variables = {**access, "AWS_ENDPOINT_URL": url, "PYTHONPATH": f"{REPOSITORY}:{_S3_PACKAGES}"}

    def go(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def come(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def lacks(self, report: Mapping[str, Any], steps: int) -> list[str]:  # noqa: ARG002
        copy = self._folder / "copy"
        copy.mkdir()
        for key in re.findall(
            r"<Key>(.*?)</Key>", self._asked(f"?list-type=2&prefix=here/{report['run_id']}/").decode()
        ):
            (copy / key.rpartition("/")[2]).write_bytes(self._asked(f"/{key}"))
        return _newest(LocalFolder(copy))

    def _asked(self, what: str) -> bytes:
        request = urllib.request.Request(f"{self._url}/bucket{what}", headers=_ASKS)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Troubled(Bucket):
    """Asked through a proxy, which answers 500 or breaks off while the bucket is away."""

    def __init__(self, folder: Path, dice: Random) -> None:
        super().__init__(folder)
        self._proxy = Proxy(self._url, dice)
        self.met = self._proxy.met
        # Else botocore asks again so often, and for so long, that hardly an error comes through.
        self.variables |= {"AWS_ENDPOINT_URL": self._proxy.url, "AWS_MAX_ATTEMPTS": "1"}

    def go(self) -> None:
        self._proxy.is_in_trouble = True

    def come(self) -> None:
        self._proxy.is_in_trouble = False

    def close(self) -> None:
        self._proxy.close()
        super().close()


class Disk:
    """A small one in memory, filled by a file."""

    before: tuple[str, ...] = ()
    has_checkpoints = True
    met: Mapping[str, int] = {}

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._filling = folder / "filling"
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "campaign", str(folder)], check=True)
        self.arguments = (f"checkpoint.uri={folder}",)
        self.variables: dict[str, str] = {}

    def go(self) -> None:
        with self._filling.open("ab", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def come(self) -> None:
        self._filling.unlink()

    def lacks(self, report: Mapping[str, Any], steps: int) -> list[str]:  # noqa: ARG002
        return _newest(LocalFolder(self._folder / str(report["run_id"])))

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self._folder)], check=True)
