"""True command lines whose workers, servers and driver are killed and stopped: the result is that of an undisturbed run."""

from __future__ import annotations

import signal
import time

import pytest

from orchestrator.provenance.code.worktree import LARGE_FILE_BYTES
from tests.cli.alone import Alone, alone, assert_as_alone, trace_of
from tests.cli.checkpoints import spoil
from tests.cli.test_signals import wait_for_end
from tests.cli.watching import WatchedRun
from tests.projects import PATIENCE_S, Done, Project

pytestmark = pytest.mark.ray

STEPS = 150
RUN = ("conf=digits", f"run.steps={STEPS}", "evaluation.every=50", "trace.digest_every=20", "output=json")


@pytest.fixture(scope="module")
def undisturbed(digits: Project) -> Alone:
    return alone(digits, "digits", *RUN[1:])


def same(project: Project, done: Done, undisturbed: Alone) -> None:
    """The run has come to the result of an undisturbed one; nothing is left."""
    assert_as_alone(project, done, undisturbed)
    assert project.runs()[done.report["run_id"]] == "FINISHED"


@pytest.mark.long
def test_a_run_of_several_lives_each_of_which_is_disturbed(digits: Project, undisturbed: Alone) -> None:
    """With a server up to Ctrl-C, and with loaders to the end; between them in stages by TCP up to SIGKILL of the driver."""
    run = live_with_a_server(digits)
    live_in_stages(digits, run)
    spoil(run.folder / "checkpoints")
    large = digits.path / "large.bin"
    with large.open("wb") as file:
        file.truncate(LARGE_FILE_BYTES + 1)
    layout = ("cluster.workers=1", "cluster.stages=1", "transport=auto", "data.loaders=1")
    done = digits.run(f"resume={run.run_id[:12]}", *layout, "output=json")
    large.unlink()
    assert "note: this run cannot be repeated exactly: large.bin (50 MB) is too large" in done.err
    assert "going on from the checkpoint of step" in done.err
    assert done.report["run_id"] == run.run_id
    same(digits, done, undisturbed)
    finished = digits.run(f"resume={run.run_id}")
    assert (finished.code, "has finished" in finished.err) == (2, True)


def live_with_a_server(project: Project) -> WatchedRun:
    """The older worker dies, then the server; at most a step that only the dead had applied is computed twice."""
    run = WatchedRun(project, *RUN, "cluster.workers=2", "topology=parameter_server", "checkpoint.every=10")
    run.wait_for_steps(20)
    run.kill(run.living()[0])
    run.wait_for("recovered")
    (server,) = run.living("server").values()
    run.kill(server)
    run.wait_for("server_lost")
    run.wait_for_steps(run.steps + 1)
    run.process.send_signal(signal.SIGINT)
    stopped = run.end()
    assert_stopped_in_order(project, run, stopped)
    lost = [each for each in stopped.report["recoveries"] if each["kind"] == "lost"]
    assert 1 <= len(lost) <= 2
    assert all(each["steps_lost"] <= 1 for each in lost)
    assert {each["worker"] for each in run.journal("worker_lost")} == {0}
    assert len(run.journal("server_lost")) == 1
    assert stopped.report["generations"] >= 3
    return run


def live_in_stages(project: Project, before: WatchedRun) -> None:
    """With other code in the project, which is not used. A third worker joins two; one dies whose stage another one has
    too, which costs no step; then the driver dies, after which its members end."""
    refused = project.run("resume=last", "run.name=another")
    assert (refused.code, "run.name: a run keeps the one that it began with" in refused.err) == (2, True)
    generations, recoveries = len(before.journal("generation_started")), len(before.journal("recovered"))
    stopped_at = before.steps
    pipeline = project.path / "pipelines" / "digits.py"
    code = pipeline.read_text()
    pipeline.write_text(code.replace("cross_entropy(", "2 * functional.cross_entropy("))
    assert pipeline.read_text() != code
    layout = ("cluster.workers={min: 2, max: 3}", "cluster.stages=2", "topology=peer_to_peer", "transport=tcp")
    run = WatchedRun(project, "resume=last", *layout, "checkpoint.every=15", "output=json", run_id=before.run_id)
    joined = run.wait_for("recovered", recoveries + 1)[recoveries]
    first, grown = run.journal("generation_started")[generations : generations + 2]
    assert (first["stages"], grown["stages"][:2]) == ([0, 1], [0, 1])
    assert (joined["kind"], joined["steps_lost"]) == ("joined", 0)
    run.kill(run.living()[grown["members"][grown["stages"].index(grown["stages"][2])]])
    lost = run.wait_for("recovered", recoveries + 2)[recoveries + 1]
    assert (lost["kind"], lost["steps_lost"] <= 1) == ("lost", True)
    run.wait_for("checkpoint_saved", len(run.journal("checkpoint_saved")) + 2)
    pipeline.write_text(code)
    members = list(run.living().values())
    run.process.kill()
    _, told = run.process.communicate()
    for pid in members:
        wait_for_end(pid, time.monotonic() + PATIENCE_S)
    assert project.runs()[run.run_id] == "RUNNING"
    assert "note: pipelines/digits.py changed since the run began" in told
    assert f"going on from the checkpoint of step {stopped_at}" in told


def assert_stopped_in_order(project: Project, run: WatchedRun, stopped: Done) -> None:
    assert stopped.code == 130
    assert "interrupted by SIGINT" in stopped.err
    assert (stopped.report["status"], stopped.report["error"]["kind"]) == ("killed", "Interrupted")
    assert "Traceback" not in stopped.err
    assert project.runs()[run.run_id] == "KILLED"
    assert f"python -m orchestrator resume={run.run_id}" in stopped.err
    assert 20 <= stopped.report["steps"] == run.steps < STEPS


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


@pytest.mark.long
def test_all_workers_are_lost_and_the_run_starts_again_from_a_damaged_last_checkpoint(
    digits: Project, undisturbed: Alone
) -> None:
    run = WatchedRun(digits, *RUN, "cluster.workers=2", "checkpoint.every=20")
    run.wait_for("checkpoint_saved", 3)
    workers = run.living().values()
    for pid in workers:
        run.kill(pid, signal.SIGSTOP)  # no newer checkpoint comes
    spoil(run.folder / "checkpoints")
    for pid in workers:
        run.kill(pid)
    done = run.end()
    same(digits, done, undisturbed)
    (restarted,) = [each for each in done.report["recoveries"] if each["kind"] == "restarted"]
    assert restarted["steps_lost"] >= 20, "it went back to the checkpoint before"
