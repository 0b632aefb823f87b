"""A node that Ray drains, or whose `ray start` gets SIGTERM: its workers leave at a step boundary, before the deadline, and the
run comes to the result of the undisturbed one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.cli.alone import Alone, alone, assert_as_alone
from tests.cli.test_checks import SLOW, with_pipeline
from tests.cli.watching import WatchedRun
from tests.cluster.conftest import Joined, raylets, wait_for_line
from tests.projects import REPOSITORY, Project

pytestmark = [pytest.mark.long, pytest.mark.ray]

DEADLINE_S = 120  # nobody is here for it: all have left long before
GIVEN = ("conf=digits", "run.steps=500", "evaluation.every=100", "checkpoint.every=null", "output=json")


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose workers take their time, so that others can come before the end; the result is the same."""
    return with_pipeline(tmp_path_factory.mktemp("slow"), "slow", SLOW)


@pytest.fixture(scope="module")
def undisturbed(slow: Project) -> Alone:
    return alone(slow, "digits", *GIVEN[1:])


def launched(project: Project, joined: Joined, workers: str) -> WatchedRun:
    layout = (
        f"cluster.address={joined.address}",
        f"cluster.workers={workers}",
        "pipeline.target=pipelines.slow:Digits",
    )
    return WatchedRun(replace(project, variables=joined.access), *GIVEN, *layout)


def ray(joined: Joined, *arguments: str) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", *arguments],
        env={**inherited, **joined.access, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def nodes_of(run: WatchedRun) -> dict[int, str]:
    return {event["worker"]: event["node"] for event in run.journal("worker_started")}


def assert_left(run: WatchedRun, gone: str) -> None:
    """All that were there have left, and nobody who had begun was lost. (One that is just being started, and has no room, may
    be.)"""
    there = [worker for worker, node in nodes_of(run).items() if node == gone]
    assert sorted(event["worker"] for event in run.journal("worker_left")) == sorted(there)
    assert not {event["worker"] for event in run.journal("worker_lost")} & nodes_of(run).keys()


@pytest.mark.parametrize("workers", ["2", "3"])
def test_a_node_that_is_drained_is_left_without_losing_a_step(slow: Project, undisturbed: Alone, workers: str) -> None:
    """All workers are there, and the other node has room for them; or some, and it has not for all."""
    with raylets(0, 2, 2) as joined:
        run = launched(slow, joined, workers)
        run.wait_for_steps(20)
        gone = nodes_of(run)[0]
        told = ray(
            joined,
            "drain-node",
            f"--address={joined.address}",
            f"--node-id={gone}",
            "--reason=DRAIN_NODE_REASON_PREEMPTION",
            "--reason-message=preempted",
            f"--deadline-remaining-seconds={DEADLINE_S}",
        )
        out, _ = told.communicate()
        assert told.returncode == 0, out
        run.wait_for("worker_left", sum(node == gone for node in nodes_of(run).values()))
        done = run.end()
    assert_as_alone(slow, done, undisturbed)
    assert_left(run, gone)
    assert [each["steps_lost"] for each in done.report["recoveries"] if each["steps_lost"]] == []
    (drained,) = run.journal("node_drained")
    assert 0 < drained["seconds"] <= DEADLINE_S
    assert "(Ray drains it); worker" in done.err
    assert "since its node goes away" in done.err


@contextlib.contextmanager
def started(joined: Joined, cpus: int) -> Iterator[subprocess.Popen[str]]:
    """A node as a user starts one."""
    process = ray(joined, "start", f"--address={joined.address}", f"--num-cpus={cpus}", "--block")
    try:
        wait_for_line(process, "Ray runtime started")
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_node_whose_ray_start_gets_sigterm_is_left_without_losing_a_step(slow: Project, undisturbed: Alone) -> None:
    with raylets(0, 2) as joined, started(joined, 2) as node:
        run = launched(slow, joined, "4")
        run.wait_for_steps(20)
        node.send_signal(signal.SIGTERM)
        run.wait_for("worker_left", 2)
        done = run.end()
    assert_as_alone(slow, done, undisturbed)
    (drained,) = run.journal("node_drained")
    assert len(drained["members"]) == 2
    assert_left(run, nodes_of(run)[int(drained["members"][0].split()[1])])
    assert [each["steps_lost"] for each in done.report["recoveries"] if each["steps_lost"]] == []
