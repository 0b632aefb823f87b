"""A child is waited for, gets our signals, and is terminated when there is enough of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from orchestrator.driver.terminal import child_process
from orchestrator.driver.terminal.signals import PendingSignal

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
