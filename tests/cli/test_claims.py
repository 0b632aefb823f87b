"""Shards that are claimed by true processes: one that is slow and one that is killed change no bit, and the summary tells who
computed them."""

from __future__ import annotations

import os

import pytest

from tests.cli.alone import alone, assert_as_alone
from tests.cli.watching import WatchedRun
from tests.projects import Project

RUN = ["conf=digits", "run.steps=120", "run.threads=1", "cluster.workers=4", "output=json"]

pytestmark = [pytest.mark.long, pytest.mark.ray]


def test_a_slow_worker_and_one_that_is_killed_change_no_bit(digits: Project) -> None:
    expected = alone(digits, "digits", *RUN[1:-1], "cluster.workers=1")
    run = WatchedRun(digits, *RUN)
    run.wait_for_steps(10)
    living = run.living()
    os.setpriority(os.PRIO_PROCESS, living[3], 19)
    run.wait_for_steps(run.steps + 20)
    run.kill(living[1])
    done = run.end()
    assert_as_alone(digits, done, expected)
    told = done.report["shards"]
    assert {"worker 0", "worker 2", "worker 3"} <= told.keys()
    assert 0 < sum(each["of_others"] for each in told.values()) < sum(each["computed"] for each in told.values())
    assert sum(each["computed"] for each in told.values()) <= 8 * 120  # what the dead told last is missing
    started = run.journal("generation_started")
    assert len(started) >= 2
    assert "  shards   worker 0 " in done.err


def test_without_claims_each_computes_its_own(digits: Project) -> None:
    done = digits.run(*RUN, "run.steps=5", "cluster.workers=2", "cluster.claims=false")
    assert done.code == 0
    assert "shards" not in done.report
    assert "of others" not in done.err
