"""The process that goes on with a run when its driver dies; drivers and members are small processes of their own."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.cli import resume as resume_command
from orchestrator.cli.arguments import Arguments
from orchestrator.config.settings import Settings, load
from orchestrator.driver.report.outcome import RunOutcome
from orchestrator.driver.supervision import supervised, supervisor, taken_over
from orchestrator.driver.terminal.signals import PendingSignal
from orchestrator.errors import CheckpointDamaged, ConfigurationError
from orchestrator.experiments.resume import Resumed
from tests.refusals import refused

pytestmark = pytest.mark.slow

PATIENCE_S = 30
LACKING = "import os, runpy, sys; del os.pidfd_open, sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
CONF = {"run": {"steps": 1}, "pipeline": {"target": "a:B"}}


@pytest.fixture
def driver() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


class Watching:
    """A supervisor of `driver`, which starts a process that notes in `noted` by what it was taken over."""

    def __init__(
        self, driver: subprocess.Popen[bytes], folder: Path, before: str | None = None, *, lacking: bool = False
    ) -> None:
        """lacking: its Python knows of no descriptors of processes."""
        self.driver = driver
        self.noted, self.trace, self.lock = folder / "noted", folder / "trace", folder / "lock"
        self.trace.write_text("a line\n")
        self.lock.touch()
        environment = {**os.environ, **({} if before is None else {supervisor.TAKEN_OVER: before})}
        program = ["-c", LACKING] if lacking else []
        command = [sys.executable, "-I", "-S", *program, supervisor.__file__, str(driver.pid), "20"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)

    def tell(self, **said: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(said).encode() + b"\n")
        self.process.stdin.flush()

    def tell_of_a_run(self, then: str = "") -> None:
        """then: the process also does this, where `first` says whether it is the first one."""
        note = (
            f"import os; first = not os.path.exists({str(self.noted)!r}); "
            f"open({str(self.noted)!r}, 'a').write(os.environ[{supervisor.TAKEN_OVER!r}] + f' {{os.getpid()}}\\n'); {then}"
        )
        self.tell(run="4e8d", command=[sys.executable, "-c", note], where=" tracking.uri=URI", trace=str(self.trace))

    def lose_the_driver(self) -> str:
        """The supervisor's words about the loss."""
        self.driver.kill()
        self.driver.wait()
        return self.end()

    def end(self) -> str:
        _, said = self.process.communicate(timeout=PATIENCE_S)
        return said.decode()


def test_a_driver_that_dies_is_followed_by_another_which_knows_of_it(
    driver: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    watching = Watching(driver, tmp_path)
    watching.tell_of_a_run()
    said = watching.lose_the_driver()
    count, size, _, pid, successor = watching.noted.read_text().split()
    assert (count, size, pid) == ("1", "7", str(driver.pid))
    assert f"the driver (process {driver.pid}) has ended; process {successor} goes on with run 4e8d" in said


def test_a_successor_that_is_killed_while_it_imports_is_followed(
    driver: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """It has no supervisor of its own yet."""
    watching = Watching(driver, tmp_path)
    watching.tell_of_a_run("first and os.kill(os.getpid(), 9)")
    watching.lose_the_driver()
    first, second = (line.split() for line in watching.noted.read_text().splitlines())
    assert (second[0], second[3]) == ("2", first[4])


@pytest.mark.parametrize("then", ["os.kill(os.getpid(), 15)", "os._exit(1)"])
def test_a_successor_that_ends_by_itself_or_is_told_to_is_not(
    driver: subprocess.Popen[bytes], tmp_path: Path, then: str
) -> None:
    watching = Watching(driver, tmp_path)
    watching.tell_of_a_run(then)
    watching.lose_the_driver()
    assert watching.noted.read_text().count("\n") == 1


def test_a_successor_with_a_supervisor_of_its_own_is_left_to_that(
    driver: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """Otherwise two would go on with the run."""
    watching = Watching(driver, tmp_path)
    tell = "from orchestrator.driver.supervision import _is_watched; _is_watched(); os.kill(os.getpid(), 9)"
    watching.tell_of_a_run(tell)
    watching.lose_the_driver()
    assert watching.noted.read_text().count("\n") == 1


def test_a_python_without_descriptors_of_processes_sees_the_end_too(
    driver: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """Also where nobody has asked for it."""
    watching = Watching(driver, tmp_path, lacking=True)
    watching.tell_of_a_run()
    with pytest.raises(subprocess.TimeoutExpired):
        watching.process.wait(0.5)
    driver.kill()
    assert "goes on with run 4e8d" in watching.end()
    assert watching.noted.exists()


def test_one_that_ended_in_order_is_not(driver: subprocess.Popen[bytes], tmp_path: Path) -> None:
    watching = Watching(driver, tmp_path)
    watching.tell_of_a_run()
    watching.tell(done=True)
    assert watching.end() == ""
    assert not watching.noted.exists()


def test_without_a_run_there_is_nothing_to_go_on_with(driver: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert "no record of a run to go on with yet" in Watching(driver, tmp_path).lose_the_driver()


def test_members_that_still_write_are_waited_for(driver: subprocess.Popen[bytes], tmp_path: Path) -> None:
    watching = Watching(driver, tmp_path)
    watching.tell_of_a_run()
    watching.tell(lock=str(watching.lock))
    with watching.lock.open("rb") as member:
        fcntl.flock(member, fcntl.LOCK_SH)
        driver.kill()
        with pytest.raises(subprocess.TimeoutExpired):
            watching.process.wait(0.5)
        assert not watching.noted.exists()
    watching.end()
    assert watching.noted.exists()


@pytest.mark.parametrize(("before", "goes_on"), [("3 6 1.0 9", True), ("2 7 1.0 9", True), ("3 7 1.0 9", False)])
def test_a_run_whose_drivers_die_before_a_step_is_done_is_left(
    driver: subprocess.Popen[bytes], tmp_path: Path, before: str, *, goes_on: bool
) -> None:
    watching = Watching(driver, tmp_path, before)
    watching.tell_of_a_run()
    said = watching.lose_the_driver()
    assert watching.noted.exists() == goes_on
    assert ("python -m orchestrator resume=4e8d tracking.uri=URI\n" in said) != goes_on


def settings(*given: str) -> Settings:
    return load([CONF], given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((), False),
        (("run.supervised=true",), True),
        (("tracking.uri=http://127.0.0.1:1",), True),
        (("tracking.uri=http://127.0.0.1:1", "run.supervised=false"), False),
    ],
)
def test_it_is_there_where_it_is_wanted_and_a_signal_ends_it(given: tuple[str, ...], *, expected: bool) -> None:
    pending_signal = PendingSignal()
    with supervised(settings(*given), [], pending_signal, Path()) as supervision:
        assert (supervision is not None) == expected
        if supervision is not None:
            pending_signal._post(signal.SIGHUP, None)
            assert supervision._process.wait(PATIENCE_S) == 0
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_it_goes_on_where_the_command_was_typed_and_not_in_a_checkout(tmp_path: Path) -> None:
    with (
        contextlib.chdir("/"),
        supervised(settings("run.supervised=true"), [], PendingSignal(), tmp_path) as supervision,
    ):
        assert supervision is not None
        assert Path(f"/proc/{supervision._process.pid}/cwd").readlink() == tmp_path


def test_an_audit_which_nobody_can_resume_has_none() -> None:
    """It was told to go on, and then refused."""
    wanted = settings("run.supervised=true")
    with supervised(wanted, [], PendingSignal(), Path(), can_resume=False) as supervision:
        assert supervision is None


def test_a_launch_from_python_says_that_it_has_none() -> None:
    with (
        refused("run.supervised"),
        supervised(settings("run.supervised=true"), None, PendingSignal(), Path()),
    ):
        pass
    with supervised(settings("tracking.uri=http://127.0.0.1:1"), None, PendingSignal(), Path()) as supervision:
        assert supervision is None


def test_who_was_taken_over_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert taken_over() is None
    monkeypatch.setenv(supervisor.TAKEN_OVER, "1 700 1763912345.250 4711")
    found = taken_over()
    assert found is not None
    assert (found.driver, found.ended) == (4711, 1763912345.25)


@pytest.mark.parametrize(
    ("is_successor", "typed"),
    [(True, ("tracking.uri=http://server:5000",)), (True, ()), (False, ("tracking.uri=http://server:5000",))],
)
def test_who_goes_on_for_a_dead_driver_waits_for_stores_and_checkpoints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, is_successor: bool, typed: tuple[str, ...]
) -> None:
    """The project's own store, too: its disk may be full at that moment."""
    away = ConfigurationError(["tracking.uri: the MLflow server is away"], code="mlflow.unusable")
    unread = CheckpointDamaged("the checkpoint cannot be read", code="checkpoint.not-read")
    answers: list[Any] = [away, unread, away, Resumed("4e8d", "run", RunOutcome(steps=3))]

    def resumed(*_: Any, **__: Any) -> Resumed:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return cast("Resumed", answer)

    monkeypatch.setattr(resume_command, "resume", resumed)
    monkeypatch.setattr(resume_command, "_AGAIN_S", 0.0)
    if is_successor:
        monkeypatch.setenv(supervisor.TAKEN_OVER, "1 7 1.0 9")
    command = Arguments("4e8d", typed, 0.0)
    if not is_successor:
        with refused("mlflow.unusable"):
            resume_command.run(command)
        return
    assert resume_command.run(command).code == 0
    assert capsys.readouterr().err.count("the MLflow server is away") == 1
    assert answers == []
