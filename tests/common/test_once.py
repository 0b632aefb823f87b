"""Work that is done once on a host for all processes of a run; the processes are true ones."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

from orchestrator.common import once

_FORK = multiprocessing.get_context("fork")


def member(folder: Path, secret: bytes, killed: bool = False) -> None:
    def work() -> None:
        with (folder / "done").open("a") as file:
            file.write("x")
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)

    once.belong_to_run(secret)
    once.on_this_host("work", folder, work)
    assert (folder / "done").exists()


def run(folder: Path, *secrets: bytes, killed: bool = False) -> list[int | None]:
    processes = [_FORK.Process(target=member, args=(folder, secret, killed)) for secret in secrets]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
    return [each.exitcode for each in processes]


def times(folder: Path) -> int:
    return len((folder / "done").read_text())


def test_one_process_of_a_run_does_it(tmp_path: Path) -> None:
    assert run(tmp_path, *[b"a"] * 4) == [0] * 4
    assert times(tmp_path) == 1
    assert run(tmp_path, b"a", b"b", b"b") == [0] * 3  # one that takes another's place, and another run
    assert times(tmp_path) == 2


def test_one_that_is_killed_leaves_it_to_the_next(tmp_path: Path) -> None:
    assert run(tmp_path, b"a", killed=True) == [-signal.SIGKILL]
    assert run(tmp_path, b"a", b"a") == [0, 0]
    assert times(tmp_path) == 2
