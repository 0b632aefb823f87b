"""A launch whose workers are forked, and one without any forked process, are the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.alone import Alone, alone, assert_as_alone
from tests.cli.watching import WatchedRun
from tests.projects import Project

SHORT = ("conf=digits", "run.steps=25", "evaluation.every=10", "cluster.workers=2", "output=json")
WITHOUT = {"ORCHESTRATOR_FORK": "0"}


def sockets(project: Project) -> Iterator[Path]:
    return Path(project.temporary).glob("orchestrator-*/*")


@pytest.fixture(scope="module")
def undisturbed(digits: Project) -> Alone:
    return alone(digits, "digits", *SHORT[1:])


@pytest.mark.ray
@pytest.mark.long
def test_a_launch_without_any_forked_process_has_the_same_bits(digits: Project, undisturbed: Alone) -> None:
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
def test_a_forked_worker_that_is_killed_costs_no_step(digits: Project) -> None:
    long = ("conf=digits", "run.steps=120", "evaluation.every=50", "cluster.workers=3", "output=json")
    expected = alone(digits, "digits", *long[1:])
    watched = WatchedRun(digits, *long)
    watched.wait_for_steps(40)
    (first, *_) = members = watched.living().values()
    assert all("forkserver.server import main" in forked_by(pid) for pid in members)
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


@pytest.mark.slow
@pytest.mark.long
def test_libraries_keep_no_generator_that_all_who_are_forked_would_share() -> None:
    """Those that every process has begin anew; what a library made of its own while it was imported would not."""
    code = """
import gc, os, random
from orchestrator.cluster.forkserver import server
found = server.Server(None, None, -1)
found.load()
found.load_ray(os.environ)
gc.unfreeze()
kept = {id(each): each for each in gc.get_objects() if type(each) is random.Random}
print(found._made, [type(each).__module__ for each in kept.values() if each is not random._inst])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "{'RAY_CLIENT_MODE': '0'} []\n"), done.stderr
