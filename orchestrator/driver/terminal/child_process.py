"""A command run as a child process that gets our signals and does not outlive us."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.driver.terminal import group_leader
from orchestrator.driver.terminal.signals import PendingSignal

_LOOK_S = 0.2
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Done:
    """How a child ended. code: its exit code; out: what it wrote to stdout. (Its stderr is ours.)"""

    code: int
    out: str


def never() -> bool:
    """False: let the child run to its own end."""
    return False


def run(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    pending_signal: PendingSignal,
    enough: Callable[[], bool] = never,
    *,
    together: bool = False,
) -> Done:
    """Run the command in a session of its own, so that a Ctrl-C reaches it once, through us; when we are killed, it is
    terminated. enough: asked now and then; once it returns True, the child is terminated; together: it is a tool, which ends
    with all that it has started, and its stderr is no longer ours, but stands in `out` among its stdout."""
    child = subprocess.Popen(
        [sys.executable, "-IS", group_leader.__file__, *command] if together else command,
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if together else None,
        text=True,
        start_new_session=True,
        preexec_fn=end_with_parent,
    )
    passed_on: str | None = None
    while True:
        try:
            out, _ = child.communicate(timeout=_LOOK_S)
            return Done(child.returncode, out)
        except subprocess.TimeoutExpired:
            wanted = pending_signal.signal or ("SIGTERM" if enough() else None)
            if wanted is not None and wanted != passed_on:
                passed_on = wanted
                child.send_signal(signal.Signals[passed_on])


def end_with_parent() -> None:
    """Have this process terminated when its parent is gone. Called in a new child, before its command."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
