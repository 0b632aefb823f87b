"""The stacks of a process are seen whatever it does; of one that is stopped it is said that it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.records.stacks import Frame, parse
from orchestrator.worker.member.stack_dump import DumpTarget, ProcessStacks, take
from tests.products import thinned
from tests.projects import REPOSITORY
from tests.worker.runs import PATIENCE_S

pytestmark = pytest.mark.slow

CODE = """\
import itertools, json, os, sys, threading, time
from orchestrator.worker.member.stack_dump import StackDump
dump = StackDump()
def hang():
    {hang}
print(json.dumps(dump.place), flush=True)
hang()
"""
HANGS = {
    "sleeping": "time.sleep(1000)",
    "waiting for a lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "reading": "os.read(os.pipe()[0], 1)",
    "in C, with the interpreter's lock": "sum(itertools.repeat(0))",
    "computing": "while True: pass",
}


@contextmanager
def process(hang: str, folder: Path) -> Iterator[DumpTarget]:
    file = folder / "hangs.py"
    file.write_text(CODE.format(hang=hang))
    command = [sys.executable, str(file)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=folder, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
    ) as child:
        assert child.stdout is not None
        try:
            yield DumpTarget(**json.loads(child.stdout.readline()))
        finally:
            child.kill()


def seen_in(place: DumpTarget, function: str) -> ProcessStacks:
    """It says where it is before it is there."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        (seen,) = take([place])
        if any(frame.function == function for thread in parse(seen.text) for frame in thread):
            return seen
    raise AssertionError(f"never seen in {function}")


@pytest.mark.parametrize("how", thinned(HANGS, 5, 3))
def test_whatever_a_process_does_its_line_is_seen(how: str, tmp_path: Path) -> None:
    with process(HANGS[how], tmp_path) as place:
        frames = [frame for thread in parse(seen_in(place, "hang").text) for frame in thread]
        assert Frame(str(tmp_path / "hangs.py"), 5, "hang") in frames
        assert take([place])[0].text.count("Current thread") <= 1  # each time anew


def test_a_process_that_is_stopped_is_said_to_be_and_goes_on(tmp_path: Path) -> None:
    with process(HANGS["sleeping"], tmp_path) as place:
        seen_in(place, "hang")
        os.kill(place.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, place.pid, os.WSTOPPED)
        (seen,) = take([place])
        assert (parse(seen.text), seen.state) == ([], "T")
        os.kill(place.pid, signal.SIGCONT)
        assert seen_in(place, "hang").state in "SR"


def test_who_is_gone_or_is_another_process_gets_no_signal(tmp_path: Path) -> None:
    with process(HANGS["sleeping"], tmp_path) as place:
        pass
    other = DumpTarget(os.getpid(), 0, {})  # whose number was given again; the signal would end this process
    assert [seen.text for seen in take([place, other])] == ["", ""]
