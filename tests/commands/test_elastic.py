"""True command lines whose workers, servers and driver are killed and stopped: the result is that of an undisturbed run."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from orchestrator.provenance.code.worktree import LARGE_FILE_BYTES
from tests.commands.alone import Alone, alone, assert_as_alone, trace_of
from tests.commands.test_signals import wait_for_end
from tests.commands.watching import WatchedRun
from tests.projects import PATIENCE_S, Done, Project

pytestmark = pytest.mark.ray

STEPS = 200
RUN = ("conf=digits", f"run.steps={STEPS}", "evaluation.every=50", "trace.digest_every=25", "output=json")


@pytest.fixture(scope="module")
def undisturbed(digits: Project) -> Alone:
    return alone(digits, "digits", *RUN[1:])


def same(project: Project, done: Done, undisturbed: Alone) -> None:
    """What an undisturbed run comes to; nothing is left."""
    assert_as_alone(project, done, undisturbed)
    assert project.runs()[done.report["run_id"]] == "FINISHED"


def test_workers_and_a_server_are_killed_and_replaced(digits: Project, undisturbed: Alone) -> None:
    """Two workers at once, then the server; replacements join, and at most a step that only the dead had applied is computed
    twice."""
    run = WatchedRun(digits, *RUN, "cluster.workers=3", "topology=parameter_server")
    run.wait_for_steps(20)
    living = run.living()
    for worker in (0, 2):
        run.kill(living[worker])
    run.wait_for("recovered")
    (server,) = run.living("server").values()
    run.kill(server)
    done = run.end()
    same(digits, done, undisturbed)
    lost = [each for each in done.report["recoveries"] if each["kind"] == "lost"]
    assert 1 <= len(lost) <= 3
    assert all(each["steps_lost"] <= 1 for each in lost)
    assert {each["worker"] for each in run.journal("worker_lost")} == {0, 2}
    assert len(run.journal("server_lost")) == 1
    assert done.report["generations"] >= 3


@pytest.mark.long
def test_a_server_is_killed_and_then_all_workers(digits: Project, undisturbed: Alone) -> None:
    """Without a checkpoint the run begins anew, and the server that is left forgets what it was told."""
    run = WatchedRun(digits, *RUN, "cluster.workers=2", "topology=parameter_server", "topology.servers=2")
    run.wait_for_steps(20)
    run.kill(run.living("server")[2])
    run.wait_for("recovered")
    for pid in run.living().values():
        run.kill(pid)
    done = run.end()
    same(digits, done, undisturbed)
    assert len(run.journal("server_lost")) == 1
    kinds = [each["kind"] for each in done.report["recoveries"]]
    assert kinds[0] == "lost"
    assert "restarted" in kinds[1:]


@pytest.mark.long
def test_a_stopped_worker_is_found_and_a_spare_takes_its_place(digits: Project, undisturbed: Alone) -> None:
    run = WatchedRun(digits, *RUN, "cluster.workers=2", "cluster.spares=1", "cluster.step_timeout_s=12")
    run.wait_for_steps(20)
    first, victim = run.journal("generation_started")[0]["members"]  # whoever was ready first; the third is the spare
    (spare,) = {0, 1, 2} - {first, victim}
    run.kill(run.living()[victim], signal.SIGSTOP)
    done = run.end()
    same(digits, done, undisturbed)
    assert done.report["workers"] == 2
    assert run.journal("generation_started")[1]["members"] == sorted([first, spare])


@pytest.mark.long
def test_a_range_of_workers_grows(digits: Project, undisturbed: Alone) -> None:
    run = WatchedRun(digits, *RUN, "run.steps=1000000", "cluster.workers={min: 1, max: 2}")
    run.wait(lambda: run.journal("generation_started")[-1:][0]["workers"] == 2 or None if run.steps else None)
    run.wait_for_steps(STEPS)
    run.process.send_signal(signal.SIGTERM)
    done = run.end()
    assert (done.code, done.report["workers"]) == (130, 2)
    assert next(each["workers"] for each in run.journal("generation_started")) == 1
    assert {each["kind"] for each in done.report["recoveries"]} == {"joined"}
    assert trace_of(digits, done)[: STEPS - 1] == undisturbed.trace[:-1]


def test_an_interrupted_run_goes_on_elsewhere_where_its_driver_is_killed_and_goes_on_again(
    digits: Project, undisturbed: Alone
) -> None:
    """Three lives on three layouts: the first ends by Ctrl-C, the second, with changed code, by SIGKILL of its driver, after
    which its members end too, and the last checkpoint is damaged."""
    first = WatchedRun(digits, *RUN, "cluster.workers=1")
    first.wait_for_steps(30)
    first.process.send_signal(signal.SIGINT)
    stopped = first.end()
    assert_stopped_in_order(digits, first, stopped)
    refused = digits.run("resume=last", "run.name=another")
    assert (refused.code, "run.name: a run keeps the one that it began with" in refused.err) == (2, True)
    pipeline = digits.path / "pipelines" / "digits.py"
    code = pipeline.read_text()
    pipeline.write_text(code.replace("cross_entropy(", "2 * functional.cross_entropy("))
    assert pipeline.read_text() != code
    again = ("resume=last", "cluster.workers=2", "topology=peer_to_peer", "checkpoint.every=15", "output=json")
    second = WatchedRun(digits, *again, run_id=first.run_id)
    second.wait_for_steps(60)
    second.wait_for("checkpoint_saved", len(first.journal("checkpoint_saved")) + 2)
    pipeline.write_text(code)
    members = list(second.living().values())
    second.process.kill()
    _, told = second.process.communicate()
    for pid in members:
        wait_for_end(pid, time.monotonic() + PATIENCE_S)
    assert digits.runs()[first.run_id] == "RUNNING"
    _spoil(first.folder / "checkpoints")
    assert "note: pipelines/digits.py changed since the run began" in told
    assert f"going on from the checkpoint of step {stopped.report['steps']}" in told
    large = digits.path / "large.bin"
    with large.open("wb") as file:
        file.truncate(LARGE_FILE_BYTES + 1)
    done = digits.run(f"resume={first.run_id[:12]}", "cluster.workers=1", "output=json")
    large.unlink()
    assert "note: this run cannot be repeated exactly: large.bin (50 MB) is too large" in done.err
    assert "going on from the checkpoint of step" in done.err
    assert done.report["run_id"] == first.run_id
    same(digits, done, undisturbed)
    finished = digits.run(f"resume={first.run_id}")
    assert (finished.code, "has finished" in finished.err) == (2, True)


def assert_stopped_in_order(project: Project, run: WatchedRun, stopped: Done) -> None:
    assert stopped.code == 130
    assert "interrupted by SIGINT" in stopped.err
    assert (stopped.report["status"], stopped.report["error"]["kind"]) == ("killed", "Interrupted")
    assert "Traceback" not in stopped.err
    assert project.runs()[run.run_id] == "KILLED"
    assert f"python -m orchestrator resume={run.run_id}" in stopped.err
    assert 30 <= stopped.report["steps"] < STEPS


@pytest.mark.long
def test_all_workers_are_lost_and_the_run_starts_again_from_a_damaged_last_checkpoint(
    digits: Project, undisturbed: Alone
) -> None:
    run = WatchedRun(digits, *RUN, "cluster.workers=2", "checkpoint.every=20")
    run.wait_for("checkpoint_saved", 3)
    _spoil(run.folder / "checkpoints")
    for pid in run.living().values():
        run.kill(pid)
    done = run.end()
    same(digits, done, undisturbed)
    (restarted,) = [each for each in done.report["recoveries"] if each["kind"] == "restarted"]
    assert restarted["steps_lost"] > 0


def _spoil(checkpoints: Path) -> None:
    """Turn a bit in a file of the newest checkpoint."""
    newest = max(checkpoints.glob("checkpoint-*.json"))
    blob = checkpoints / json.loads(newest.read_text())["blobs"][0]["name"]
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
