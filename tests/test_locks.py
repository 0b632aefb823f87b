"""Locks: one holder at a time, free when it dies, not for who may only read. A wait hears signals and names the holder."""

from __future__ import annotations

import ast
import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.common import locks
from orchestrator.data.files.cache import Cache
from orchestrator.driver.folders import RunFolder
from orchestrator.driver.terminal import signals
from orchestrator.errors import Interrupted
from orchestrator.provenance.code import checkout
from tests.refusals import refused

PACKAGE = Path(locks.__file__).parents[1]
HOLDER = """
import sys
from pathlib import Path
from orchestrator.common import locks
with locks.held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the lock."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("before", [None, 0o644, 0o666, 0o400])
def test_a_lock_is_for_its_owner_alone(tmp_path: Path, before: int | None) -> None:
    """One of an older version could be read by everybody, and so be locked."""
    path = tmp_path / "lock"
    tmp_path.chmod(0o755)
    if before is not None:
        path.touch()
        path.chmod(before | 0o200)
    with locks.held(path):
        assert mode(path) == 0o600
    path.chmod(0o644)
    os.close(locks.take(path))
    assert mode(path) == 0o600


@pytest.mark.parametrize(
    ("folder", "file"),
    [(0o755, 0o600), (0o700, 0o600), (0o775, 0o660), (0o2770, 0o660), (0o777, 0o666), (0o1777, 0o600)],
)
def test_who_may_write_the_folder_may_lock(tmp_path: Path, folder: int, file: int) -> None:
    """Colleagues who share a store; not all the world in /tmp, whose files nobody else may remove."""
    tmp_path.chmod(folder)
    with locks.held(tmp_path / "lock"):
        assert mode(tmp_path / "lock") == file


def test_no_door_leaves_a_lock_that_others_can_open(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    files, cache = RunFolder(tmp_path, "a"), Cache(tmp_path / "cache", 90)
    files.lease()
    with cache._deciding(), checkout.disposable_folder(tmp_path / "worktrees") as place:
        assert mode(place) == 0o700
        found = {path.relative_to(tmp_path): mode(path) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {Path("a/lock"): 0o600, Path("cache/room"): 0o600, Path("worktrees.lock"): 0o600}


def test_every_lock_is_taken_in_one_module() -> None:
    """But for the supervisor's, which imports nothing of this program, and waits for some seconds only."""
    found = set()
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text()
        if "flock" not in text and "lockf" not in text:  # most files, and parsing them takes seconds
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and node.attr in ("flock", "lockf"):
                found.add(str(file.relative_to(PACKAGE)))
    assert found == {"common/locks.py", "driver/supervision/supervisor.py"}


def test_one_holds_it_at_a_time(tmp_path: Path) -> None:
    inside, most = [], []

    def work() -> None:
        for _ in range(20):
            with locks.held(tmp_path / "lock"):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert max(most) == 1
    assert not locks.is_held(tmp_path / "lock")


@pytest.mark.slow
def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with another(path) as process:
        assert locks.is_held(path)
        process.kill()
        process.wait()
        assert not locks.is_held(path)
        with locks.held(path):
            pass


@pytest.mark.slow
def test_a_run_that_is_driven_says_by_whom(tmp_path: Path) -> None:
    files = RunFolder(tmp_path, "a")
    with another(files.path / "lock") as process:
        assert files.is_driven
        with refused("record.being-driven", f"process {process.pid} ("):
            files.lease()


class Clock:
    """Time that passes as it is slept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.sleep)
        self.later: dict[float, object] = {}

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for at in [at for at in self.later if at <= self.now]:
            self.later.pop(at)()  # type: ignore[operator]


@pytest.mark.slow
def test_a_wait_says_after_five_seconds_for_whom_and_ends_when_the_file_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lock"
    with another(path) as process:
        clock = Clock(monkeypatch)
        said: list[str] = []
        clock.later = {4.9: lambda: said.append(capsys.readouterr().err), 30.0: path.unlink}
        with locks.held(path):
            assert clock.now < 31
            assert process.poll() is None
    assert said == [""]
    told = capsys.readouterr().err
    assert told.count("\n") == 2
    assert told.startswith(f"note: waiting for {path}, which process {process.pid} (")
    assert f"of user {locks.user_name(os.getuid())} holds" in told
    assert "remove the file" in told


@pytest.mark.parametrize("listed", [True, False])
def test_the_holder_is_named_by_the_kernel_or_by_its_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, listed: bool
) -> None:
    """Such as one on another machine, or in another container."""
    path = tmp_path / "lock"
    with locks.held(path):
        assert locks.holder(path).startswith(f"this process, process {os.getpid()} (")
        if not listed:
            monkeypatch.setattr(locks, "_process", lambda _: None)
            assert locks.holder(path) == path.read_text().strip()
        path.write_text("\x1b]52;c;AAAA\x07 is no note")
    monkeypatch.setattr(locks, "_process", lambda _: None)
    assert locks.holder(path) == "a process that is not seen from here"
    path.write_text("process \x1b]52;c;AAAA\x07")
    assert locks.holder(path) == "process ]52;c;AAAA"


@pytest.mark.slow
def test_a_signal_ends_a_wait_of_any_thread(tmp_path: Path) -> None:
    """The record of a run is opened in one while the main thread starts Ray."""
    path, ended = tmp_path / "lock", []

    def wait() -> None:
        try:
            with locks.held(path):
                pass
        except Interrupted as error:
            ended.append(error.message)

    with another(path) as process, signals.posted():
        waiting = threading.Thread(target=wait)
        waiting.start()
        signal.raise_signal(signal.SIGTERM)
        waiting.join(60)
    assert ended
    assert ended[0].startswith(f"interrupted by SIGTERM, while waiting for {path}, which process {process.pid} (")
    assert locks._posted == []


@pytest.mark.slow
@pytest.mark.long
def test_a_command_that_waits_is_ended_by_a_signal(tmp_path: Path) -> None:
    """Nobody is inside the kernel, where Python hears nothing."""
    waiter = "from orchestrator.driver.terminal import signals\nsignals.interrupt()\nprint('up', flush=True)\n" + HOLDER
    with another(tmp_path / "lock"):
        command = [sys.executable, "-c", waiter, str(tmp_path / "lock")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            process.terminate()
            _, told = process.communicate(timeout=60)
    assert "KeyboardInterrupt: SIGTERM" in told


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """As Lustre mounted without them, or NFS without a lock manager."""

    def lock(descriptor: int, operation: int) -> None:  # noqa: ARG001
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", lock)
    with refused("lock.not-taken", str(tmp_path / "lock")), locks.held(tmp_path / "lock"):
        pass
    with refused("lock.not-taken", str(tmp_path / "lock")):
        locks.take(tmp_path / "lock")


def test_a_lock_that_cannot_be_opened_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "link", tmp_path / "none" / "lock"):
        with refused("lock.not-opened", str(path)), locks.held(path):
            pass
    assert not (tmp_path / "elsewhere").exists()
