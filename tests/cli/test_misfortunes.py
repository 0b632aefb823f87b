"""Misfortunes that no plan foresees, as true command lines. Each ends well, or with one clear message, in bounded time, and
nothing stays."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.records.lines import read
from tests.cli.alone import Alone, alone, assert_as_alone
from tests.cli.chaos import members_of
from tests.cli.watching import WatchedRun
from tests.projects import PATIENCE_S, Done, Project

pytestmark = pytest.mark.ray

_TAKEN_FOR_DEAD_S = 75.0
DIGITS = ("conf=digits", "run.steps=150", "evaluation.every=150", "output=json")


@pytest.fixture(scope="module")
def undisturbed(digits: Project) -> Alone:
    return alone(digits, "digits", *DIGITS[1:])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Room for one checkpoint of the digits (460 kB), not for two."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "none", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.long
@pytest.mark.parametrize(
    "given",
    [
        ("pipeline.target=faults:Killed", "cluster.workers=2"),
        ("pipeline.target=faults:Exits", "cluster.workers=4"),
        ("pipeline.target=faults:Killed", "cluster.workers=1", "checkpoint.every=100"),
    ],
    ids=" ".join,
)
def test_a_micro_batch_that_ends_every_process_ends_the_run_by_its_name(
    faulty: Project, given: tuple[str, ...]
) -> None:
    """With few workers all state is lost each time, and the last words of all who knew the step."""
    done = faulty.run("conf=good", "run.steps=256", *given, "output=json")
    assert done.code == 1
    assert done.report["error"]["kind"] == "WorkerLost"
    named = "step 248, shard 3: 3 workers in a row were lost while they computed it"
    assert named in done.report["error"]["message"]
    lost = [line for line in done.err.splitlines() if "was lost after" in line]
    assert len(lost) == 3
    assert all(line.endswith("ended in the compute phase of step 248, shard 3") for line in lost)
    assert "Traceback" not in done.err


@pytest.mark.long
def test_a_micro_batch_that_never_ends_ends_the_run_by_its_name(faulty: Project) -> None:
    sleeping = ("pipeline.target=faults:Sleeps", "run.steps=256", "cluster.step_timeout_s=12")
    done = faulty.run("conf=good", *sleeping, "output=json")
    assert done.code == 1
    assert done.report["error"]["kind"] == "Stalled"
    assert "step 248, shard 3: 2 workers in a row stood still" in done.report["error"]["message"]
    assert "Traceback" not in done.err


@pytest.mark.long
def test_first_members_that_are_killed_while_they_prepare_are_made_good(digits: Project, undisturbed: Alone) -> None:
    before = set(digits.runs())
    process = digits.start(*DIGITS, "cluster.workers=3")
    victims = _preparing(digits, process, 2)
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    out, err = process.communicate(timeout=PATIENCE_S)
    done = Done(process.returncode, out, err)
    assert done.code == 0, err
    assert done.report["digest"] == undisturbed.digest
    (run_id,) = set(digits.runs()) - before
    lost = [event["why"] for event in read(digits.folder(run_id) / "journal.jsonl") if event["event"] == "worker_lost"]
    assert len(lost) == 2


@pytest.mark.long
def test_a_worker_that_comes_after_the_code_was_edited_has_that_of_the_beginning(
    digits: Project, undisturbed: Alone
) -> None:
    """Its first micro-batch would have the bits of the others, and a later one need not. A single worker, without whose
    successor there is no further step."""
    watched = WatchedRun(digits, *DIGITS, "cluster.workers=1")
    watched.wait_for_steps(10)
    with _changed(digits.path / "pipelines" / "digits.py"):
        watched.kill(next(iter(watched.living().values())))
        done = watched.end()
    assert "note: pipelines/digits.py changed since the run began; workers that start from now on have what" in done.err
    assert_as_alone(digits, done, undisturbed)


@pytest.mark.long
def test_a_worker_that_comes_after_data_were_changed_for_good_takes_no_part(
    digits: Project, undisturbed: Alone
) -> None:
    """DVC has no copy of them."""
    watched = WatchedRun(digits, *DIGITS, "cluster.workers=1")
    watched.wait_for_steps(10)
    with _changed(digits.path / "data" / "digits" / "train_images.npy"):
        watched.kill(next(iter(watched.living().values())))
        why = watched.wait_for("worker_lost", count=2)[1]["why"]
    assert why.startswith("data/digits changed since the run began, and the data of this run cannot be restored: ")
    assert why.endswith("; put back what the run began with")
    assert_as_alone(digits, watched.end(), undisturbed)


@pytest.mark.long
def test_data_that_change_while_a_run_trains_are_told(digits: Project, undisturbed: Alone) -> None:
    watched = WatchedRun(digits, *DIGITS, "cluster.workers=1")
    watched.wait_for_steps(10)
    with _changed(digits.path / "data" / "digits" / "train_images.npy"):
        done = watched.end()
    assert (
        "warning: data/digits changed while the run trained: what it read after that is not what was recorded"
        in done.err
    )
    assert_as_alone(digits, done, undisturbed)  # it had read all


@contextlib.contextmanager
def _changed(file: Path) -> Iterator[None]:
    """Within the block the file has another last byte."""
    kept = file.with_name("kept")
    file.rename(kept)
    try:
        file.write_bytes(kept.read_bytes()[:-1] + b"\n\n")
        yield
    finally:
        kept.replace(file)


@pytest.mark.long
@pytest.mark.parametrize("process", ["raylet", "gcs_server"])
@pytest.mark.parametrize("supervised", ["false", "true"])
def test_a_run_whose_ray_dies_says_so_at_once_and_can_be_resumed(
    digits: Project, undisturbed: Alone, process: str, supervised: str
) -> None:
    """A supervised run has workers that outlive its Ray; they end with the launch all the same."""
    run = WatchedRun(digits, *DIGITS, "cluster.workers=2", "checkpoint.every=20", f"run.supervised={supervised}")
    run.wait_for("checkpoint_saved")
    (pid,) = _processes(digits, process)
    run.kill(pid)
    failed = run.end()
    assert failed.code == 1
    assert failed.report["error"]["kind"] == "ClusterUnavailable"
    assert "of the private Ray has ended" in failed.err
    assert f"python -m orchestrator resume={run.run_id}" in failed.err
    if process == "gcs_server":  # the members outlive it, and save what they hold
        (*_, saved) = (
            each["step"]
            for each in read(digits.folder(run.run_id) / "journal.jsonl")
            if each["event"] == "checkpoint_saved"
        )
        assert failed.report["steps"] == saved
        assert f"go on from step {saved}:" in failed.err
    assert "Traceback" not in failed.err
    assert digits.runs()[run.run_id] == "FAILED"
    assert digits.leftovers() == []
    done = digits.run(f"resume={run.run_id}", "cluster.workers=1", "output=json")
    assert done.code == 0, done.err
    assert done.report["digest"] == undisturbed.digest


@pytest.mark.long
def test_a_raylet_that_is_silent_for_long_is_borne_and_a_stop_of_all_processes_keeps_every_step(
    digits: Project, undisturbed: Alone
) -> None:
    """Ray itself takes its node for dead after 64 s. A batch system then signals all processes of the launch, not its first
    alone; `timeout` and a terminal signal the process group."""
    run = WatchedRun(digits, "conf=digits", "run.steps=100000", *DIGITS[2:], "cluster.workers=2", "checkpoint.every=20")
    run.wait_for("checkpoint_saved")
    (raylet,) = _processes(digits, "raylet")
    run.kill(raylet, signal.SIGSTOP)
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.process.wait(_TAKEN_FOR_DEAD_S)
    run.kill(raylet, signal.SIGCONT)
    run.wait_for_steps(max(150, run.steps + 5))
    for pid in _processes(digits):
        with contextlib.suppress(ProcessLookupError):
            run.kill(pid, signal.SIGTERM)
    ended = run.end()
    assert ended.code == 130, ended.err
    assert "interrupted by SIGTERM; the newest checkpoint holds" in ended.err
    assert "out-of-memory" not in ended.err
    assert not run.journal("worker_lost")
    assert run.journal("checkpoint_saved")[-1]["step"] == run.steps
    assert (
        list(read(run.folder / "trace.jsonl"))[:149] == undisturbed.trace[:149]
    )  # the last one tells of parameters, too
    assert digits.leftovers() == []


@pytest.mark.root
@pytest.mark.long
def test_training_goes_on_when_the_disk_of_the_checkpoints_is_full(
    digits: Project, undisturbed: Alone, small_disk: Path
) -> None:
    done = digits.run(*DIGITS, "cluster.workers=2", "checkpoint.every=40", f"checkpoint.uri=file://{small_disk}")
    assert done.code == 0, done.err
    assert done.report["digest"] == undisturbed.digest
    assert "could not be written, the run goes on without it" in done.err
    assert "Traceback" not in done.err
    kept = [path.name for path in small_disk.glob("*/checkpoint-*.json")]
    assert len(kept) == 1


@pytest.mark.long
@pytest.mark.root
def test_a_run_whose_own_disk_is_full_says_so_and_is_resumed_when_there_is_room(
    digits: Project, undisturbed: Alone
) -> None:
    """Training goes on as long as it can; at the end there is no room for the weights."""
    disk = digits.path / ".orchestrator"
    disk.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "none", disk], check=True)
    try:
        run = WatchedRun(digits, *DIGITS, "cluster.workers=2", "checkpoint.every=20")
        run.wait_for("checkpoint_saved")
        with contextlib.suppress(OSError):
            (disk / "filler").write_bytes(bytes(2**25))
        failed = run.end()
        (disk / "filler").unlink()
        assert failed.code == 1
        assert (failed.report["status"], failed.report["steps"]) == ("failed", 150)
        assert failed.report["digest"] == undisturbed.digest
        assert failed.report["error"]["message"].startswith("the trained weights could not be written")
        assert "cannot be written, training goes on: No space left on device" in failed.err
        assert "Traceback" not in failed.err
        assert not (run.folder / "model.safetensors").exists()
        done = digits.run(f"resume={run.run_id}", "cluster.workers=1", "output=json")
        assert done.code == 0, done.err
        assert done.report["digest"] == undisturbed.digest
        assert run.steps == 150
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.long
@pytest.mark.root
def test_a_run_whose_disk_becomes_read_only_says_so_and_is_resumed(digits: Project, undisturbed: Alone) -> None:
    """As file systems do after an error of their disk."""
    disk = digits.path / ".orchestrator"
    disk.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", disk], check=True)
    try:
        run = WatchedRun(digits, *DIGITS, "cluster.workers=2", "checkpoint.every=20")
        run.wait_for("checkpoint_saved")
        subprocess.run(["mount", "--bind", disk, disk], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", disk], check=True)
        failed = run.end()
        subprocess.run(["umount", disk], check=True)
        assert failed.code == 1
        assert failed.report["digest"] == undisturbed.digest
        assert failed.report["error"]["message"].startswith("the trained weights could not be written")
        assert f"python -m orchestrator resume={run.run_id}" in failed.err
        assert "Traceback" not in failed.err
        done = digits.run(f"resume={run.run_id}", "cluster.workers=1", "output=json")
        assert done.code == 0, done.err
        assert done.report["digest"] == undisturbed.digest
    finally:
        while subprocess.run(["umount", disk], check=False, capture_output=True).returncode == 0:
            pass


@pytest.mark.long
def test_a_run_whose_folder_is_removed_ends_with_one_message(digits: Project) -> None:
    """It could be neither resumed nor repeated. MLflow and whoever reads the JSON are told."""
    run = WatchedRun(digits, *DIGITS, "cluster.workers=2", "checkpoint.every=20")
    run.wait_for_steps(41)
    while run.folder.exists():
        shutil.rmtree(run.folder, ignore_errors=True)  # the run renames files in it meanwhile
    failed = run.end()
    assert (failed.code, failed.report["status"]) == (1, "failed")
    assert "was removed while it ran, after step" in failed.report["error"]["message"]
    assert "Traceback" not in failed.err
    assert "resume=" not in failed.err
    assert [line["step"] for line in read(run.folder / "trace.jsonl")] == list(range(failed.report["steps"]))
    listed = digits.run("runs", "output=json")
    (status,) = [each["status"] for each in listed.report["runs"] if each["run_id"] == run.run_id]
    assert status == "FAILED"


@pytest.mark.long
def test_training_goes_on_when_the_driver_has_no_descriptor_left(digits: Project, undisturbed: Alone) -> None:
    run = WatchedRun(digits, *DIGITS, "cluster.workers=2", "checkpoint.every=20")
    run.wait_for_steps(41)
    pid = run.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(_first_free_descriptor(pid) for _ in range(100)), before[1]))
    run.wait_for("checkpoint_failed")
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    done = run.end()
    assert done.code == 0, done.err
    assert done.report["digest"] == undisturbed.digest
    assert "Traceback" not in done.err


def _first_free_descriptor(pid: int) -> int:
    """As the process stands now: a file that it has open for a moment takes the first one."""
    taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}  # noqa: PTH208
    return next(number for number in range(len(taken) + 1) if number not in taken)


def _preparing(project: Project, process: subprocess.Popen[str], count: int) -> list[int]:
    """So many members that have not begun yet."""
    while len(found := members_of(project)) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    return found[:count]


def _processes(project: Project, name: str | None = None) -> list[int]:
    """Processes that a command of the project started; with a name, those whose program has it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            program = (folder / "cmdline").read_bytes().split(b"\0")[0]
            if (
                name in (None, Path(program.decode()).name)
                and project.mark.encode() in (folder / "environ").read_bytes()
            ):
                found.append(int(folder.name))
        except OSError:
            continue
    return found
