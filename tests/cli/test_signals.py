"""Ctrl-C, SIGTERM, SIGHUP, SIGKILL of the driver: the status is right, nothing stays, the next start tidies up."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time

import pytest

from tests.products import thinned
from tests.projects import PATIENCE_S, Project

SLOW = ("conf=good", "pipeline.target=faults:Slow", "run.steps=100000", "output=json")


def wait_until_training(project: Project, process: subprocess.Popen[str], before: set[str]) -> str:
    """The id of the run that appeared, once it has done a step."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for run_id in set(project.runs()) - before:
            trace = project.folder(run_id) / "trace.jsonl"
            if trace.exists() and trace.stat().st_size:
                return run_id
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
            raise AssertionError(process.communicate())
    raise AssertionError(f"no step within {PATIENCE_S:g} s")


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_is_killed_with_130(faulty: Project, number: signal.Signals) -> None:
    before = set(faulty.runs())
    process = faulty.start(*SLOW)
    run_id = wait_until_training(faulty, process, before)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert f"interrupted by {number.name}" in err
    assert "Traceback" not in err
    report = json.loads(out.splitlines()[-1])
    assert (report["run_id"], report["status"], report["error"]["kind"]) == (run_id, "killed", "Interrupted")
    assert faulty.runs()[run_id] == "KILLED"


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.parametrize("number", thinned([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], 3))
def test_a_launch_that_still_prepares_is_interrupted_in_order(faulty: Project, number: signal.Signals) -> None:
    """Here while the pipeline is imported; before that there are the data to hash and the code to look at."""
    before = faulty.runs()
    module, sign = faulty.path / "lingering.py", faulty.path / "is-imported"
    module.write_text("import pathlib, time; pathlib.Path('is-imported').touch(); time.sleep(10_000)\n")
    try:
        process = faulty.start("conf=good", "pipeline.target=lingering:Any", "output=json")
        deadline = time.monotonic() + PATIENCE_S
        while not sign.exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        module.unlink()
        sign.unlink(missing_ok=True)
    assert (process.returncode, err) == (130, f"error: interrupted by {number.name}\n")
    report = json.loads(out.splitlines()[-1])
    assert (report["run_id"], report["status"], report["error"]["kind"]) == (None, "killed", "Interrupted")
    assert faulty.runs() == before


@pytest.mark.ray
@pytest.mark.long
def test_a_second_interrupt_says_how_to_go_on_and_nobody_calls_the_run_running(faulty: Project) -> None:
    before = set(faulty.runs())
    process = faulty.start(*SLOW)
    run_id = wait_until_training(faulty, process, before)
    process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + PATIENCE_S
    while '"signal"' not in (faulty.folder(run_id) / "journal.jsonl").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGINT, err
    assert err.endswith(
        f"ended at once: run {run_id}, its files in .orchestrator/{run_id}/\n"
        f"  it goes on from its last checkpoint: python -m orchestrator resume={run_id}\n"
    ), err
    listed = faulty.run("runs", "columns=run,status")
    assert f"{run_id[:8]}  killed" in listed.out
    assert faulty.runs()[run_id] == "KILLED"
    assert faulty.run("conf=good", "cluster.workers=1").code == 0  # which tidies up what is left of its Ray


@pytest.mark.ray
@pytest.mark.long
def test_after_sigkill_the_members_end_and_the_next_start_tidies_up(faulty: Project) -> None:
    before = set(faulty.runs())
    process = faulty.start(*SLOW)
    run_id = wait_until_training(faulty, process, before)
    started = (json.loads(line) for line in (faulty.folder(run_id) / "journal.jsonl").read_text().splitlines())
    workers = [event["pid"] for event in started if event["event"] == "worker_started"]
    assert len(workers) == 2
    assert {os.getpriority(os.PRIO_PROCESS, worker) for worker in workers} == {os.getpriority(os.PRIO_PROCESS, 0)}
    process.kill()
    process.communicate()
    deadline = time.monotonic() + PATIENCE_S
    for pid in workers:
        wait_for_end(pid, deadline)
    assert faulty.runs()[run_id] == "RUNNING"
    done = faulty.run("conf=good", "cluster.workers=1")
    assert done.code == 0, done.err
    assert f"run {run_id} was left RUNNING" in done.err
    assert faulty.runs()[run_id] == "KILLED"


def wait_for_end(pid: int, deadline: float) -> None:
    """Until the process has ended. Raises AssertionError when it lives on."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
    finally:
        os.close(descriptor)
    assert ended, f"process {pid} outlives its driver"
