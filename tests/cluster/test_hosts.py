"""Two hosts: code and data are carried to the one that has neither, gradients travel by TCP, the result is the same.

Ranks go host by host, also when a worker is lost and another one joins.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.cli.alone import Alone, alone, assert_as_alone
from tests.cli.watching import WatchedRun
from tests.cluster.conftest import SHORT, Hosts, some_hosts
from tests.projects import Project


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.root
@pytest.mark.parametrize("tls", ["false", "true"])
def test_a_host_without_the_project_gets_it_and_the_result_is_the_same(
    digits: Project, at_home: Alone, tls: str
) -> None:
    with some_hosts(hidden=digits.path) as hosts:
        project = replace(digits, variables=hosts.access, before=hosts.inside)
        layout = ("cluster.workers=3", "topology=tree", f"transport.tls={tls}")
        done = project.run(*SHORT, f"cluster.address={hosts.address}", *layout)
        assert_as_alone(project, done, at_home)
        assert "note: carrying code and data to node 10.77.0.2" in done.err
        assert "10.77.0.1" not in done.err


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.root
def test_workers_that_come_later_to_a_host_without_the_project_work_in_a_copy(digits: Project) -> None:
    """The first one is alone, on the first host most of the time, which has the project."""
    undisturbed = alone(digits, "digits", *ENDLESS[1:])
    with some_hosts(hidden=digits.path) as hosts:
        project = replace(digits, variables=hosts.access, before=hosts.inside)
        run = WatchedRun(project, *ENDLESS, f"cluster.address={hosts.address}", "cluster.workers={min: 1, max: 4}")
        run.wait(lambda: any(len(set(each["nodes"])) == 2 for each in run.journal("generation_started")) or None)
        done = run.end()
    assert_as_alone(project, done, undisturbed)
    assert "note: carrying code and data" in done.err
    assert not run.journal("worker_lost")


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.root
def test_a_host_that_joins_after_an_edit_gets_what_the_run_began_with(digits: Project) -> None:
    undisturbed = alone(digits, "digits", *ENDLESS[1:])
    edited = digits.path / "pipelines" / "digits.py"
    before = edited.read_text()
    with some_hosts(hidden=digits.path) as hosts:
        hosts.lose_last()
        project = replace(digits, variables=hosts.access, before=hosts.inside)
        run = WatchedRun(project, *ENDLESS, f"cluster.address={hosts.address}", "cluster.workers={min: 1, max: 4}")
        run.wait_for_steps(10)
        edited.write_text(before.replace("/ 16", "/ 8"))
        try:
            hosts.join()
            run.wait(lambda: any(len(set(each["nodes"])) == 2 for each in run.journal("generation_started")) or None)
        finally:
            edited.write_text(before)
        done = run.end()
    assert_as_alone(project, done, undisturbed)
    assert "note: pipelines/digits.py changed since the run began; workers that start from now on have what" in done.err


ENDLESS = ("conf=digits", "run.steps=2000", "evaluation.every=500", "checkpoint.every=null", "output=json")


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.root
@pytest.mark.parametrize("for_good", [False, True], ids=["for 20 s", "for good"])
def test_a_cable_that_is_out_costs_no_step(digits: Project, for_good: bool) -> None:
    """Workers are on both hosts, the driver on the first. Those on the other are given up after `cluster.unreachable_s`; who is
    there again after 20 s was replaced, where there was room."""
    undisturbed = alone(digits, "digits", *ENDLESS[1:])
    with some_hosts(hidden=digits.path) as hosts:
        project = replace(digits, variables=hosts.access, before=hosts.inside)
        layout = (f"cluster.address={hosts.address}", "cluster.workers={min: 1, max: 3}", "cluster.unreachable_s=2")
        run = WatchedRun(project, *ENDLESS, *layout)
        run.wait(lambda: any(len(_workers(each)) == 3 for each in run.journal("generation_started")) or None)
        run.wait_for_steps(run.steps + 20)
        hosts.cable("down")
        out_since, steps = time.monotonic(), run.steps
        run.wait_for("worker_lost")
        noticed_s = time.monotonic() - out_since
        run.wait_for_steps(steps + 20)
        if not for_good:
            run.wait(lambda: time.monotonic() - out_since > 20 or None)
            hosts.cable("up")
        done = run.end()
    assert_as_alone(project, done, undisturbed)
    assert noticed_s < 20, "5 s on a machine that does nothing else; it may be busy"
    assert sum(each["steps_lost"] for each in done.report["recoveries"]) <= 1


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.root
@pytest.mark.parametrize("topology", ["ring", "hierarchical"])
def test_ranks_go_host_by_host_also_when_one_is_killed_and_another_joins(digits: Project, topology: str) -> None:
    undisturbed = alone(digits, "digits", *ENDLESS[1:])
    with some_hosts(hidden=digits.path) as hosts:
        project = replace(digits, variables=hosts.access, before=hosts.inside)
        layout = (f"cluster.address={hosts.address}", "cluster.workers={min: 3, max: 4}", f"topology={topology}")
        run = WatchedRun(project, *ENDLESS, *layout)
        run.wait(lambda: len(run.living()) == 4 or None)
        run.wait_for_steps(run.steps + 20)
        run.kill(run.living()[0])
        run.wait(lambda: _workers(run.journal("generation_started")[-1]) == {1, 2, 3, 4} or None)
        run.wait_for_steps(run.steps + 20)
        done = run.end()
    assert_as_alone(project, done, undisturbed)
    generations = run.journal("generation_started")
    for generation in generations:
        nodes = [node for node, _ in groupby(generation["nodes"])]
        assert len(nodes) == len(set(nodes)), generation
    assert sorted(generations[-1]["nodes"]) == [0, 0, 1, 1]
    first, second = generations[-1]["members"][:2]
    assert {first, second} != {1, 2}, "who joined is beside the other one of its host"


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.root
def test_what_a_worker_on_another_host_was_doing_and_said_last_is_known(digits: Project) -> None:
    """One is killed there; and one says what a library of CUDA says as it aborts a process whose card has failed, behind more
    than Ray returns without its object store."""
    undisturbed = alone(digits, "digits", *ENDLESS[1:])
    with some_hosts(hidden=digits.path) as hosts:
        project = replace(digits, variables=hosts.access, before=hosts.inside)
        run = WatchedRun(project, *ENDLESS, f"cluster.address={hosts.address}", "cluster.workers={min: 2, max: 4}")
        run.wait(lambda: len(run.living()) == 4 or None)
        run.wait_for_steps(run.steps + 20)
        run.kill(_there(run, hosts))
        run.wait_for("worker_lost")
        run.wait(lambda: len(run.living()) == 4 or None)
        run.wait_for_steps(run.steps + 20)
        pid = _there(run, hosts)
        with Path(f"/proc/{pid}/fd/2").open("a") as standard_error:
            standard_error.write("a warning of a library\n" * 20_000 + f"{UNCAUGHT}\n")
        run.kill(pid, signal.SIGABRT)
        run.wait_for("worker_lost", 2)
        done = run.end()
    assert_as_alone(project, done, undisturbed)
    killed, aborted = (each["why"] for each in run.journal("worker_lost"))
    assert re.search(r"its process \(pid \d+\) ended in the \w+ phase of step \d+", killed), killed
    assert "failed on its GPU (gpu.ecc)" in aborted
    assert re.search(r"it ended the process \(in step \d+(, shard \d)?\)$", aborted), aborted


UNCAUGHT = "Unhandled exception: N3c1016AcceleratorErrorE. what(): CUDA error: uncorrectable ECC error encountered"


def _there(run: WatchedRun, hosts: Hosts) -> int:
    """The process of a worker on the last host."""
    listed = subprocess.run(["ip", "netns", "pids", hosts.far[0]], check=True, capture_output=True, text=True)
    return next(pid for pid in run.living().values() if str(pid) in listed.stdout.split())


def _workers(generation: dict[str, Any]) -> set[int]:
    return set(generation["members"])
