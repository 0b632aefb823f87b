"""Processes that Ray starts, and signals to the launch; no Ray is started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ray._private import services

from orchestrator.cluster.forkserver import client
from orchestrator.cluster.sessions.isolation import isolated
from orchestrator.common.tested_versions import Tried

BOTH = {signal.SIGTERM, signal.SIGHUP}
WAITS = [sys.executable, "-I", "-S", "-c", "input()"]


def started() -> Any:
    return services.ConsolePopen(WAITS, stdin=subprocess.PIPE)


def blocked(process: int) -> set[signal.Signals]:
    (line,) = (each for each in Path(f"/proc/{process}/status").read_text().splitlines() if each.startswith("SigBlk:"))
    return {number for number in BOTH if int(line.split()[1], 16) >> (number - 1) & 1}


@pytest.mark.parametrize("deaf", [True, False])
def test_a_private_ray_is_out_of_reach_of_signals_to_the_launch(deaf: bool) -> None:
    usual = services.ConsolePopen
    with isolated(deaf=deaf):
        process = started()
    with process:
        assert services.ConsolePopen is usual
        assert os.getsid(process.pid) == process.pid != os.getsid(0)
        assert blocked(process.pid) == (BOTH if deaf else set())
        assert not blocked(os.getpid())
        process.terminate()  # as Ray ends it
        assert process.wait() == -(signal.SIGKILL if deaf else signal.SIGTERM)


def test_a_ray_that_was_not_tested_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tried, "is_here", False)
    with isolated(deaf=True), started() as process:
        assert os.getsid(process.pid) == os.getsid(0)
        process.kill()


def test_a_worker_and_what_it_starts_hear_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The raylet, from which workers would have it, does not."""
    at_start: list[set[Any]] = []

    def forked(_place: str, _command: Sequence[str]) -> bool:
        at_start.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        return True

    monkeypatch.setattr(client, "forked", forked)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BOTH)
    try:
        client.main(["place", "python", "worker.py"])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert not at_start[0] & BOTH
