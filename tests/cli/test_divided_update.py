"""A true run whose workers divide the update, one of whom is killed, and which is resumed on others."""

from __future__ import annotations

import signal

import pytest

from tests.cli.alone import alone, assert_as_alone
from tests.cli.watching import WatchedRun
from tests.projects import Project

pytestmark = [pytest.mark.ray, pytest.mark.long]

RUN = (
    "conf=digits",
    "run.steps=300",
    "evaluation.every=50",
    "trace.digest_every=20",
    "optimizer={name: adamw, lr: 0.002}",
    "output=json",
)


def test_a_divided_update_through_a_kill_and_a_resume_on_other_workers(digits: Project) -> None:
    """The worker is killed in whose memory the update lies; nothing differs from one worker by itself."""
    undisturbed = alone(digits, "digits", *RUN[1:])
    run = WatchedRun(digits, *RUN, "cluster.workers=3", "update.sharded=true")
    run.wait_for_steps(20)
    run.kill(run.living()[0])
    lost = run.wait_for("recovered")[0]
    assert lost["steps_lost"] <= 1
    run.wait_for_steps(run.steps + 1)
    run.process.send_signal(signal.SIGINT)
    assert run.end().code == 130
    done = digits.run(f"resume={run.run_id}", "cluster.workers=2", "topology=tree", "output=json")
    assert_as_alone(digits, done, undisturbed)
