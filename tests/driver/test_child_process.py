"""A child is waited for, gets our signals, and is terminated when there is enough of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.driver.terminal import child_process
from orchestrator.driver.terminal.signals import PendingSignal
from tests.projects import PATIENCE_S

WORK = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
signal.signal(signal.SIGINT, lambda *_: sys.exit(8))
Path("begun").touch()
while True:
    signal.pause()
"""


def test_a_child_says_what_it_came_to(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os; print(os.environ['X'], os.getcwd()); raise SystemExit(3)"]
    done = child_process.run(command, tmp_path, {"X": "x"}, PendingSignal())
    assert (done.code, done.out) == (3, f"x {tmp_path}\n")


def test_a_child_of_which_there_is_enough_is_terminated(tmp_path: Path) -> None:
    done = child_process.run(
        [sys.executable, "-c", WORK], tmp_path, os.environ, PendingSignal(), (tmp_path / "begun").exists
    )
    assert (done.code, done.out) == (7, "")


def test_a_signal_of_ours_reaches_it(tmp_path: Path) -> None:
    pending_signal = PendingSignal()

    def signal_comes() -> bool:
        if (tmp_path / "begun").exists():
            pending_signal.signal = "SIGINT"
        return False

    done = child_process.run([sys.executable, "-c", WORK], tmp_path, os.environ, pending_signal, signal_comes)
    assert (done.code, done.out) == (8, "")


DEEP = """
import subprocess, sys
inner = "import os, time; from pathlib import Path; Path('inner').write_text(str(os.getpid())); time.sleep(600)"
subprocess.run([sys.executable, "-c", inner])
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_tool_ends_with_all_that_it_has_started(tmp_path: Path, name: str) -> None:
    """As pip, which starts another one of itself: that one installed all there was to install, and we waited for it."""
    pending_signal, inner = PendingSignal(), tmp_path / "inner"

    def signal_comes() -> bool:
        if inner.exists() and inner.read_text():
            pending_signal.signal = name
        return False

    done = child_process.run(
        [sys.executable, "-c", DEEP], tmp_path, os.environ, pending_signal, signal_comes, together=True
    )
    assert done.code != 0
    assert not is_alive(int(inner.read_text()))


def test_it_does_so_where_we_are_killed(tmp_path: Path) -> None:
    ours = f"""
import os, sys
from pathlib import Path
from orchestrator.driver.terminal import child_process
from orchestrator.driver.terminal.signals import PendingSignal
child_process.run([sys.executable, "-c", {DEEP!r}], Path.cwd(), os.environ, PendingSignal(), together=True)
"""
    inner = tmp_path / "inner"
    with subprocess.Popen([sys.executable, "-c", ours], cwd=tmp_path) as process:
        until(lambda: inner.exists() and inner.read_text() != "")
        process.kill()
    until(lambda: not is_alive(int(inner.read_text())))


def test_a_tool_says_what_it_came_to(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os; os.write(2, b'here'); print(os.environ['X']); raise SystemExit(3)"]
    done = child_process.run(command, tmp_path, {"X": "x"}, PendingSignal(), together=True)
    assert (done.code, done.out) == (3, "herex\n")
    assert child_process.run(["kill", "-9", "0"], tmp_path, {}, PendingSignal(), together=True).code != 0


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return False
    return state != "Z"


def until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)  # looks at what other processes do
