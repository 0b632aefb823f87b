"""True command lines whose workers, servers and driver are killed and stopped: the result is that of an undisturbed run."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from orchestrator.provenance.code.worktree import LARGE_FILE_BYTES
from tests.commands.watching import CancellableTransport
from tests.projects import Done, Project

pytestmark = pytest.mark.ray

STEPS = 200
RUN = ("conf=digits", f"run.steps={STEPS}", "evaluation.every=50", "trace.digest_every=25", "output=json")


@pytest.fixture(scope="module")
def undisturbed(digits: Project) -> Done:
    done = digits.run(*RUN, "cluster.workers=2")
    assert done.code == 0, done.err
    return done


def same(project: Project, done: Done, undisturbed: Done) -> None:
    """One digest, one trace, the same metrics; nothing is left."""
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    assert done.report["digest"] == undisturbed.report["digest"]
    assert done.report["metrics"] == undisturbed.report["metrics"]
    traces = [project.folder(each.report["run_id"]) / "trace.jsonl" for each in (done, undisturbed)]
    assert traces[0].read_bytes() == traces[1].read_bytes()
    assert project.runs()[done.report["run_id"]] == "FINISHED"


def test_workers_are_killed_and_replaced(digits: Project, undisturbed: Done) -> None:
    """Two at once, then one more; replacements join, and at most a step that only the dead had applied is computed twice."""
    run = CancellableTransport(digits, *RUN, "cluster.workers=4", "topology=tree")
    run.wait_for_steps(20)
    living = run.living()
    for worker in (0, 2):
        run.kill(living[worker])
    run.wait_for("recovered")
    run.kill(run.living()[1])
    done = run.end()
    same(digits, done, undisturbed)
    lost = [each for each in done.report["recoveries"] if each["kind"] == "lost"]
    assert 1 <= len(lost) <= 3
    assert all(each["steps_lost"] <= 1 and each["seconds"] < 10 for each in lost)
    assert {each["worker"] for each in run.journal("worker_lost")} == {0, 1, 2}
    assert done.report["generations"] >= 3


def test_a_server_is_killed_and_then_all_workers(digits: Project, undisturbed: Done) -> None:
    """Without a checkpoint the run begins anew, and the server that is left forgets what it was told."""
    run = CancellableTransport(digits, *RUN, "cluster.workers=2", "topology=parameter_server", "topology.servers=2")
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


def test_a_stopped_worker_is_found_and_a_spare_takes_its_place(digits: Project, undisturbed: Done) -> None:
    run = CancellableTransport(digits, *RUN, "cluster.workers=2", "cluster.spares=1", "cluster.step_timeout_s=12")
    run.wait_for_steps(20)
    first, victim = run.journal("generation_started")[0]["members"]  # whoever was ready first; the third is the spare
    (spare,) = {0, 1, 2} - {first, victim}
    run.kill(run.living()[victim], signal.SIGSTOP)
    done = run.end()
    same(digits, done, undisturbed)
    assert done.report["workers"] == 2
    assert run.journal("generation_started")[1]["members"] == sorted([first, spare])


def test_a_range_of_workers_grows(digits: Project, undisturbed: Done) -> None:
    run = CancellableTransport(digits, *RUN, "run.steps=1000000", "cluster.workers={min: 1, max: 3}")
    run.wait(lambda: run.journal("generation_started")[-1:][0]["workers"] == 3 or None if run.steps else None)
    run.wait_for_steps(STEPS)
    run.process.send_signal(signal.SIGTERM)
    done = run.end()
    assert (done.code, done.report["workers"]) == (130, 3)
    assert next(each["workers"] for each in run.journal("generation_started")) == 1
    assert {each["kind"] for each in done.report["recoveries"]} == {"joined"}
    traces = [digits.folder(each.report["run_id"]) / "trace.jsonl" for each in (done, undisturbed)]
    grown, lines = (trace.read_text().splitlines() for trace in traces)
    assert grown[: STEPS - 1] == lines[:-1]


def test_the_driver_is_killed_and_the_run_resumed_on_another_layout(digits: Project, undisturbed: Done) -> None:
    run = CancellableTransport(digits, *RUN, "cluster.workers=3", "checkpoint.every=15")
    run.wait_for_steps(60)
    run.wait_for("checkpoint_saved", 2)
    run.process.kill()
    run.process.communicate()
    large = digits.path / "large.bin"
    with large.open("wb") as file:
        file.truncate(LARGE_FILE_BYTES + 1)
    done = digits.run(f"resume={run.run_id[:12]}", "cluster.workers=2", "topology=peer_to_peer", "output=json")
    large.unlink()
    assert "note: this run cannot be repeated exactly: large.bin (50 MB) is too large" in done.err
    assert "going on from the checkpoint of step" in done.err
    assert done.report["run_id"] == run.run_id
    same(digits, done, undisturbed)
    again = digits.run(f"resume={run.run_id}")
    assert again.code == 2
    assert "has finished" in again.err


def test_an_interrupted_run_says_how_to_go_on_and_does(digits: Project, undisturbed: Done) -> None:
    run = CancellableTransport(digits, *RUN, "cluster.workers=2")
    run.wait_for_steps(50)
    run.process.send_signal(signal.SIGINT)
    stopped = run.end()
    assert stopped.code == 130
    assert "interrupted by SIGINT" in stopped.err
    assert (stopped.report["status"], stopped.report["error"]["kind"]) == ("killed", "Interrupted")
    assert "Traceback" not in stopped.err
    assert digits.runs()[run.run_id] == "KILLED"
    assert f"python -m orchestrator resume={run.run_id}" in stopped.err
    assert stopped.report["steps"] >= 50
    refused = digits.run(f"resume={run.run_id}", "optimizer.lr=1")
    assert refused.code == 2
    assert "optimizer.lr: it determines the result" in refused.err
    refused = digits.run("resume=last", "run.name=another")
    assert refused.code == 2
    assert "run.name: a run keeps the one that it began with" in refused.err
    pipeline = digits.path / "pipelines" / "digits.py"
    code = pipeline.read_text()
    pipeline.write_text(code.replace("cross_entropy(", "2 * functional.cross_entropy("))
    assert pipeline.read_text() != code
    done = digits.run("resume=last", "output=json")
    pipeline.write_text(code)
    assert "note: pipelines/digits.py changed since the run began" in done.err
    assert f"going on from the checkpoint of step {stopped.report['steps']}" in done.err
    same(digits, done, undisturbed)


def test_all_workers_are_lost_and_the_run_starts_again_from_a_damaged_last_checkpoint(
    digits: Project, undisturbed: Done
) -> None:
    run = CancellableTransport(digits, *RUN, "cluster.workers=2", "checkpoint.every=20")
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
