"""A child is waited for, gets our signals, and is terminated when there is enough of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from orchestrator.driver import children
from orchestrator.driver.signals import Mailbox

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
    done = children.run(command, tmp_path, {"X": "x"}, Mailbox())
    assert (done.code, done.out) == (3, f"x {tmp_path}\n")


def test_a_child_of_which_there_is_enough_is_terminated(tmp_path: Path) -> None:
    done = children.run([sys.executable, "-c", WORK], tmp_path, os.environ, Mailbox(), (tmp_path / "begun").exists)
    assert (done.code, done.out) == (7, "")


def test_a_signal_of_ours_reaches_it(tmp_path: Path) -> None:
    mailbox = Mailbox()

    def signal_comes() -> bool:
        if (tmp_path / "begun").exists():
            mailbox.signal = "SIGINT"
        return False

    done = children.run([sys.executable, "-c", WORK], tmp_path, os.environ, mailbox, signal_comes)
    assert (done.code, done.out) == (8, "")
