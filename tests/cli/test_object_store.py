"""Checkpoints in a bucket of a server of S3: a bit that turned there, and a server that hangs."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from tests.cli.alone import Alone, alone, assert_as_alone
from tests.cli.watching import WatchedRun
from tests.cluster.conftest import wait_for_line
from tests.projects import REPOSITORY, Project, packages

pytestmark = [pytest.mark.long, pytest.mark.ray]

# The server looks whether somebody signed, and not what.
ASKS = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0",
    "Content-Type": "application/octet-stream",
}
RUN = ("conf=digits", "run.steps=200", "checkpoint.every=20", "cluster.workers=2", "output=json")


@dataclass(frozen=True)
class Bucket:
    """access: the environment of who uses it."""

    server: subprocess.Popen[str]
    url: str
    access: dict[str, str]

    def names(self) -> list[str]:
        return re.findall(r"<Key>(.*?)</Key>", self._call("GET", "?list-type=2").decode())

    def turn_a_bit(self, name: str) -> None:
        content = bytearray(self._call("GET", f"/{name}"))
        content[-1] ^= 1
        self._call("PUT", f"/{name}", bytes(content))

    def read(self, name: str) -> bytes:
        return self._call("GET", f"/{name}")

    def _call(self, verb: str, path: str = "", data: bytes | None = None) -> bytes:
        request = urllib.request.Request(f"{self.url}/bucket{path}", data=data, method=verb, headers=ASKS)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    path = f"{packages('s3')}:{REPOSITORY}"
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1"}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.s3_server"],
        cwd=REPOSITORY,
        env={**keys, "PYTHONPATH": path, "PATH": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        url = wait_for_line(server, "url ").split()[1]
        made = Bucket(server, url, {**keys, "AWS_ENDPOINT_URL": url, "PYTHONPATH": f"{REPOSITORY}:{packages('s3')}"})
        made._call("PUT")
        try:
            yield made
        finally:
            with contextlib.suppress(ProcessLookupError):
                server.kill()


@pytest.fixture(scope="module")
def undisturbed(digits: Project) -> Alone:
    return alone(digits, "digits", *RUN[1:])


def test_a_bit_that_turned_in_the_bucket_is_named_and_the_checkpoint_before_is_taken(
    digits: Project, bucket: Bucket, undisturbed: Alone
) -> None:
    project = replace(digits, variables=bucket.access)
    run = WatchedRun(project, *RUN, "checkpoint.uri=s3://bucket/here")
    run.wait_for("checkpoint_saved", 3)
    run.process.kill()
    run.process.communicate()
    newest = max(name for name in bucket.names() if re.search(r"/checkpoint-\d+\.json$", name))
    blob = json.loads(bucket.read(newest))["blobs"][0]["name"]
    bucket.turn_a_bit(f"{newest.rpartition('/')[0]}/{blob}")
    done = project.run(f"resume={run.run_id}", "output=json")
    (warned,) = {line for line in done.err.splitlines() if line.startswith("warning: checkpoint")}
    step = int(re.findall(r"checkpoint-(\d+)\.json", newest)[0])
    assert warned.startswith(f"warning: checkpoint {step} is not used: ")
    assert "was altered: its digest is another one" in warned
    assert_as_alone(project, done, undisturbed)
    assert project.leftovers() == []


def test_a_server_that_hangs_costs_no_step(digits: Project, bucket: Bucket, undisturbed: Alone) -> None:
    project = replace(digits, variables=bucket.access)
    run = WatchedRun(project, *RUN, "checkpoint.uri=s3://bucket/there")
    run.wait_for("checkpoint_saved")
    bucket.server.send_signal(signal.SIGSTOP)
    try:
        run.wait_for_steps(run.steps + 100)
    finally:
        bucket.server.send_signal(signal.SIGCONT)
    done = run.end()
    assert_as_alone(project, done, undisturbed)
    assert (done.report["recoveries"], done.report["generations"]) == ([], 1)
    assert project.leftovers() == []
