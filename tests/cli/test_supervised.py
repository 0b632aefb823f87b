"""A run whose driver is killed goes on by itself, with no step lost and the result of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.records.lines import read
from tests.cli.watching import WatchedRun
from tests.projects import PATIENCE_S, Project, make_digits

pytestmark = [pytest.mark.ray, pytest.mark.long]
COMMON = ("run.steps=200", "evaluation.every=50", "trace.digest_every=25", "checkpoint.every=60", "output=json")
RUN = ("conf=digits", "run.supervised=true", *COMMON)
LAYOUTS = {
    "ring": ("cluster.workers=3",),
    "servers": ("topology={name: parameter_server, servers: 2}", "cluster.workers=2"),
    "compressed": ("cluster.workers=2", "compression={name: powersgd, rank: 2}"),
    "stages": ("cluster.workers=2", "cluster.stages=2"),
    "loaders": ("cluster.workers=2", "data.loaders=1"),
}


def last_report(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def run_to_the_end(watched: WatchedRun) -> tuple[str, str]:
    """The text that all drivers have written to stdout and to stderr."""
    return watched.process.communicate(timeout=PATIENCE_S)


def undisturbed(project: Project, *layout: str) -> dict[str, Any]:
    return last_report(project.run("conf=digits", *COMMON, *layout).out)


def with_the_newest_member(watched: WatchedRun) -> None:
    os.kill(max(watched.living().values()), signal.SIGKILL)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_killed_driver_costs_no_step(digits: Project, layout: str) -> None:
    expected = undisturbed(digits, *LAYOUTS[layout])
    watched = WatchedRun(digits, *RUN, *LAYOUTS[layout])
    watched.wait_for_steps(75)
    watched.process.kill()
    out, err = run_to_the_end(watched)
    found = last_report(out)
    assert found["status"] == "finished", err
    assert found["digest"] == expected["digest"]
    (lost,), (recovered,) = watched.journal("driver_lost"), found["recoveries"]
    assert (lost["steps_lost"], recovered["kind"], recovered["steps_lost"]) == (0, "driver", 0)
    assert "Traceback" not in err
    lines = [list(read(digits.folder(str(each["run_id"])) / "trace.jsonl")) for each in (expected, found)]
    assert [line["step"] for line in lines[1]] == list(range(200))
    assert [line["loss"] for line in lines[0]] == [line["loss"] for line in lines[1]]
    assert digits.runs()[watched.run_id] == "FINISHED"


@pytest.mark.parametrize("times", [1, 2])
def test_a_worker_that_dies_with_the_driver_costs_no_step_either(digits: Project, times: int) -> None:
    """The workers that are left have the whole state. The second time the successor is killed like the first driver."""
    expected = undisturbed(digits, "cluster.workers=3")
    watched = WatchedRun(digits, *RUN, "cluster.workers=3")
    pid = watched.process.pid
    for at in range(times):
        watched_steps(watched, 60 + 60 * at)
        os.kill(pid, signal.SIGKILL)
        with_the_newest_member(watched)
        pid = successor(watched, at + 1) if at + 1 < times else 0
    out, err = run_to_the_end(watched)
    assert last_report(out)["digest"] == expected["digest"], err
    assert [lost["steps_lost"] for lost in watched.journal("driver_lost")] == [0] * times


def test_a_run_in_a_checkout_of_its_code_is_followed_as_one_in_the_project(tmp_path: Path) -> None:
    """Its checkpoints lie in the project, which so is another one than it began with."""
    digits = make_digits(tmp_path)
    expected = undisturbed(digits, "cluster.workers=1")
    watched = WatchedRun(digits, *RUN, "cluster.workers=1", "checkpoint.uri=kept")
    watched.wait_for_steps(75)
    watched.process.kill()
    followed = successor(watched, 1)
    watched_steps(watched, 130)
    os.kill(followed, signal.SIGKILL)
    out, err = run_to_the_end(watched)
    assert "it goes on with what it began with" in err
    assert last_report(out)["digest"] == expected["digest"], err
    assert [lost["steps_lost"] for lost in watched.journal("driver_lost")] == [0, 0]


@pytest.mark.parametrize("at", ["the driver", "starting 2 workers"])
def test_a_successor_that_is_killed_before_its_first_step_is_followed(digits: Project, at: str) -> None:
    """Nobody knew of its run yet, which stayed as it was. at: what is said then; at the first it begins to import."""
    expected = undisturbed(digits, "cluster.workers=2")
    watched = WatchedRun(digits, *RUN, "cluster.workers=2")
    watched.wait_for_steps(75)
    watched.process.kill()
    assert watched.process.stderr is not None
    followed = 0
    for line in watched.process.stderr:
        if "goes on with run" in line:
            followed = int(line.partition("; process ")[2].split()[0])
        if followed and line.startswith(at):
            os.kill(followed, signal.SIGKILL)
            break
    out, err = run_to_the_end(watched)
    assert last_report(out)["digest"] == expected["digest"], err


def watched_steps(watched: WatchedRun, steps: int) -> None:
    """As `wait_for_steps`, whoever drives the run."""
    until(lambda: watched.steps >= steps)


def successor(watched: WatchedRun, losses: int) -> int:
    """The process of the driver after so many losses, which the kernel knows as who holds the run's lock."""
    until(lambda: len(watched.journal("driver_lost")) >= losses)
    inode = (watched.folder / "lock").stat().st_ino
    with open("/proc/locks", encoding="ascii") as locks:
        (found,) = {int(line.split()[4]) for line in locks if line.split()[5].endswith(f":{inode}")}
    return found


def until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < deadline, "nothing of the kind came"
        time.sleep(0.03)  # each look reads files anew


def test_an_asynchronous_run_goes_on_and_is_repeated(digits: Project) -> None:
    watched = WatchedRun(digits, *RUN, "cluster.workers=2", "sync={name: ssp, staleness: 2, rest_every: 20}")
    watched.wait_for_steps(75)
    watched.process.kill()
    out, err = run_to_the_end(watched)
    assert last_report(out)["status"] == "finished", err
    repeated = digits.run(f"rerun={watched.run_id}", "output=json", "environment=ignore")
    assert last_report(repeated.out)["verdict"] == "exact", repeated.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_is_told_twice_to_end_is_not_followed(digits: Project, number: signal.Signals) -> None:
    watched = WatchedRun(digits, *RUN)
    watched.wait_for_steps(20)
    watched.process.send_signal(number)
    watched.wait_for("signal")
    watched.process.send_signal(number)
    _, err = run_to_the_end(watched)
    assert "goes on with run" not in err
    assert not watched.journal("driver_lost")
    digits.run("conf=digits", "run.steps=1")  # the next start tidies up
