"""`warm`: commands that begin in a process of the pool are the same commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cli.warm import Pool, _seconds
from orchestrator.errors import UsageError
from tests.cli.alone import Alone, alone, assert_as_alone
from tests.cli.test_signals import wait_for_end
from tests.cli.watching import WatchedRun
from tests.projects import PATIENCE_S, Done, Project

SHORT = ("conf=digits", "run.steps=25", "evaluation.every=10", "cluster.workers=2", "output=json")
WITHOUT = {"ORCHESTRATOR_FORK": "0"}


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("0.5s", 0.5), ("10min", 600), ("2h", 7200)])
def test_times_have_units(text: str, seconds: float) -> None:
    assert _seconds(text) == seconds


@pytest.mark.parametrize("text", ["10", "0s", "25h", "1d", "-1s", "s"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected a time up to 24h"):
        _seconds(text)


def test_what_is_said_of_the_pool() -> None:
    assert Pool([]).as_text() == "there is no warm pool"
    assert Pool([], 2).as_text() == "the warm pool has ended"
    server = {"role": "driver", "pid": os.getpid(), "idle_s": 600.0}
    first, last = Pool([server]).as_text().splitlines()
    assert first.startswith(f"driver  process {os.getpid()}, ")
    assert last == "they end 600 s after their last use; warm stop=true ends them now"
    assert Pool([{**server, "pid": 2**22}]).as_dict()["servers"][0]["bytes"] == 0


@pytest.fixture
def warmed(digits: Project) -> Iterator[Project]:
    """With a pool, which is ended."""
    done = digits.run("warm", "output=json")
    assert done.code == 0, done.err
    assert [each["role"] for each in done.report["servers"]] == ["driver", "worker"]
    yield digits
    ended = digits.run("warm", "stop=true", "output=json")
    assert ended.code == 0, ended.err
    for each in done.report["servers"]:
        wait_for_end(each["pid"], time.monotonic() + PATIENCE_S)
    assert [*sockets(digits)] == []


def sockets(project: Project) -> Iterator[Path]:
    return Path(project.temporary).glob("orchestrator-*/*")


@pytest.fixture(scope="module")
def undisturbed(digits: Project) -> Alone:
    return alone(digits, "digits", *SHORT[1:])


@pytest.mark.ray
def test_a_launch_in_the_pool_has_the_same_bits(warmed: Project, undisturbed: Alone) -> None:
    done = warmed.run(*SHORT)
    assert "the warm pool is not used" not in done.err
    assert_as_alone(warmed, done, undisturbed)


@pytest.mark.ray
@pytest.mark.long
def test_a_launch_without_any_forked_process_too(digits: Project, undisturbed: Alone) -> None:
    other = Project(digits.path, digits.mark, variables=WITHOUT)
    assert_as_alone(other, other.run(*SHORT), undisturbed)


def forked_by(pid: int) -> str:
    """The command line of a process's parent."""
    return Path(f"/proc/{parent(pid)}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def parent(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (found,) = (line.split()[1] for line in status.splitlines() if line.startswith("PPid:"))
    return int(found)


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.parametrize("pool", [False, True])
def test_a_forked_worker_that_is_killed_costs_no_step(
    digits: Project, request: pytest.FixtureRequest, pool: bool
) -> None:
    if pool:
        request.getfixturevalue("warmed")
    long = ("conf=digits", "run.steps=120", "evaluation.every=50", "cluster.workers=3", "output=json")
    expected = alone(digits, "digits", *long[1:])
    watched = WatchedRun(digits, *long)
    watched.wait_for_steps(40)
    (first, *_) = members = watched.living().values()
    assert all("forkserver.server import main; main() worker" in forked_by(pid) for pid in members)
    watched.kill(first)
    (lost,) = watched.wait_for("worker_lost")
    assert f"(pid {first}) ended" in lost["why"]
    done = watched.end()
    assert_as_alone(digits, done, expected)
    assert {each["steps_lost"] for each in done.report["recoveries"]} == {0}


@pytest.mark.ray
@pytest.mark.long
def test_without_their_server_workers_live_on_and_new_ones_begin_as_ray_starts_them(digits: Project) -> None:
    """A single one, without whose successor there is no further step."""
    long = ("conf=digits", "run.steps=120", "evaluation.every=50", "checkpoint.every=20", "output=json")
    expected = alone(digits, "digits", *long[1:])
    watched = WatchedRun(digits, *long, "cluster.workers=1")
    watched.wait_for_steps(40)
    (first,) = watched.living().values()
    server, before = parent(first), watched.steps
    watched.kill(server)
    watched.wait_for_steps(before + 5)
    watched.kill(first)
    assert_as_alone(digits, watched.end(), expected)
    assert len(watched.journal("worker_started")) == 2
    assert [*sockets(digits)] == []


@pytest.mark.ray
@pytest.mark.long
def test_after_sigkill_of_the_command_its_driver_and_members_end(warmed: Project) -> None:
    watched = WatchedRun(warmed, "conf=digits", "run.steps=100000", "cluster.workers=2")
    watched.wait_for_steps(5)
    driver = driver_of(watched)
    assert driver != watched.process.pid
    members = [*watched.living().values()]
    watched.process.kill()
    watched.process.communicate()
    for pid in (driver, *members):
        wait_for_end(pid, time.monotonic() + PATIENCE_S)
    done = warmed.run(*SHORT)  # tidies up
    assert done.code == 0, done.err
    assert warmed.runs()[watched.run_id] == "KILLED"


def driver_of(watched: WatchedRun) -> int:
    """The process that holds the run's lock."""
    inode = (watched.folder / "lock").stat().st_ino
    locks = Path("/proc/locks").read_text().splitlines()
    (found,) = {int(line.split()[4]) for line in locks if line.split()[5].endswith(f":{inode}")}
    return found


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_reach_a_command_in_the_pool(warmed: Project, number: signal.Signals) -> None:
    watched = WatchedRun(warmed, "conf=digits", "run.steps=100000", "cluster.workers=2", "output=json")
    watched.wait_for_steps(5)
    watched.process.send_signal(number)
    done = watched.end()
    assert done.code == 130, done.err
    assert f"interrupted by {number.name}" in done.err
    assert "Traceback" not in done.err
    assert (done.report["status"], done.report["error"]["kind"]) == ("killed", "Interrupted")


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_it_at_once_and_the_shell_sees_by_which(warmed: Project, number: signal.Signals) -> None:
    watched = WatchedRun(warmed, "conf=digits", "run.steps=100000", "cluster.workers=2")
    watched.wait_for_steps(5)
    driver, members = driver_of(watched), [*watched.living().values()]
    watched.process.send_signal(number)
    watched.wait_for("signal")
    watched.process.send_signal(number)
    assert watched.end().code == -number
    for pid in (driver, *members):
        wait_for_end(pid, time.monotonic() + PATIENCE_S)
    assert warmed.run(*SHORT).code == 0  # tidies up


@pytest.mark.ray
@pytest.mark.long
def test_a_supervised_run_in_the_pool_goes_on_when_its_command_is_killed(warmed: Project) -> None:
    common = ("conf=digits", "run.steps=200", "evaluation.every=50", "cluster.workers=2", "output=json")
    expected = alone(warmed, "digits", *common[1:])
    watched = WatchedRun(warmed, *common, "run.supervised=true")
    watched.wait_for_steps(60)
    watched.process.kill()
    out, err = watched.process.communicate(timeout=PATIENCE_S)
    assert_as_alone(warmed, Done(0, out, err), expected)
    assert [each["steps_lost"] for each in watched.journal("driver_lost")] == [0]


@pytest.mark.ray
@pytest.mark.long
def test_a_run_goes_on_when_the_pool_is_ended(warmed: Project) -> None:
    common = ("conf=digits", "run.steps=120", "cluster.workers=2", "output=json")
    expected = alone(warmed, "digits", *common[1:])
    watched = WatchedRun(warmed, *common)
    watched.wait_for_steps(10)
    assert warmed.run("warm", "stop=true").out.strip() == "the warm pool has ended"
    assert_as_alone(warmed, watched.end(), expected)


@pytest.mark.ray
@pytest.mark.long
def test_what_is_refused_says_so_and_runs_all_the_same(warmed: Project) -> None:
    other = Project(warmed.path, warmed.mark, temporary=warmed.temporary, variables={"MALLOC_ARENA_MAX": "1"})
    done = other.run("runs")
    assert (done.code, done.err) == (0, "note: the warm pool is not used: other values of MALLOC_ARENA_MAX\n")
    usage = warmed.run("runs", "nonsense=1")
    assert usage.code == 2, usage.err
    assert "note:" not in usage.err


@pytest.mark.slow
@pytest.mark.long
def test_libraries_keep_no_generator_that_all_who_are_forked_would_share() -> None:
    """Those that every process has begin anew; what a library made of its own while it was imported would not."""
    code = """
import gc, random
from orchestrator.cluster.forkserver import server
found = server.Server("driver", None, None, -1, 1.0)
found.load()
gc.unfreeze()
kept = {id(each): each for each in gc.get_objects() if type(each) is random.Random}
print(found._made, [type(each).__module__ for each in kept.values() if each is not random._inst])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "{} []\n"), done.stderr
