"""Compressed runs of true processes: the page runs as it stands, and what shards keep is lost with no worker's process."""

from __future__ import annotations

import dataclasses
import re
import time

import pytest

from tests.cli import chaos
from tests.cli.alone import Alone, alone, assert_as_alone
from tests.cli.test_signals import wait_for_end
from tests.cli.watching import WatchedRun
from tests.projects import PATIENCE_S, REPOSITORY, Project

PAGE = (REPOSITORY / "docs" / "communication.md").read_text()
KEEPING = ("conf=digits", "compression={name: powersgd, rank: 2}", "run.steps=200", "output=json")
KILLS = range(4)  # seeds of `chaos.py`

pytestmark = pytest.mark.ray


@pytest.mark.long
def test_the_page_works_word_for_word(digits: Project) -> None:
    (block,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    launch, rerun = (digits.shell(line) for line in block.splitlines())
    assert launch.code == rerun.code == 0, (launch.err, rerun.err)
    assert re.search(r"kB sent per step\n", launch.err)
    assert rerun.err.splitlines()[-1] == "exact: all 400 steps and the final parameters agree to the last bit"
    assert digits.leftovers() == []


@pytest.fixture(scope="module")
def undisturbed(digits: Project) -> Alone:
    return alone(digits, "digits", *KEEPING[1:])


@pytest.mark.long
def test_what_shards_keep_is_not_lost_with_a_process(digits: Project, undisturbed: Alone) -> None:
    """Without checkpoints: if it were, the run would begin anew."""
    run = WatchedRun(digits, *KEEPING, "cluster.workers=3", "checkpoint.every=null")
    for kills in (1, 2):
        run.wait_for_steps(40 * kills)
        run.kill(next(iter(run.living().values())))
        run.wait_for("worker_lost", kills)
        run.wait_for("recovered", kills)
    done = run.end()
    assert_as_alone(digits, done, undisturbed)
    assert len(run.journal("worker_lost")) == 2
    assert {each["kind"] for each in done.report["recoveries"]} <= {"lost", "joined"}
    # One, where only the dead had applied it.
    assert all(each["steps_lost"] <= 1 for each in done.report["recoveries"])
    assert run.journal("shard_state_unprotected") == []
    assert digits.leftovers() == []


@pytest.mark.long
def test_it_goes_with_the_driver_and_the_run_goes_on_from_its_checkpoint(digits: Project, undisturbed: Alone) -> None:
    run = WatchedRun(digits, *KEEPING, "cluster.workers=3", "checkpoint.every=20")
    run.wait_for("checkpoint_saved")
    workers = run.living().values()
    run.process.kill()
    run.process.communicate()
    for pid in workers:
        wait_for_end(pid, time.monotonic() + PATIENCE_S)
    done = digits.run(f"resume={run.run_id}", "cluster.workers=2", "topology=tree", "output=json")
    assert_as_alone(digits, done, undisturbed)
    assert digits.leftovers() == []


@pytest.mark.long
@pytest.mark.parametrize("seed", KILLS)
def test_a_disturbed_run_ends_as_if_nobody_had_touched_it(digits: Project, seed: int) -> None:
    plan = dataclasses.replace(chaos.plan(2 * seed), pipeline="compressed")
    done, run = chaos.disturb(digits, plan)
    chaos.check(digits, done, run, chaos.undisturbed(digits, "compressed"))
