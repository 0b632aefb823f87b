"""The last words of a process, read when it is gone; true processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cluster.actors import last_words
from orchestrator.cluster.actors.last_words import LastWords

ENDS = "import os, sys; sys.stdin.readline(); os.write(2, b'{}'); os.abort()"


def test_they_are_heard_when_process_and_file_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_words, "_MOST_BYTES", 5)
    file = tmp_path / "err"
    with file.open("w") as err:
        command = [sys.executable, "-c", ENDS.format("all is lost")]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=err)
    found = LastWords(process.pid)
    assert found.read() == ""
    process.communicate(b"go on\n")
    assert process.returncode == -signal.SIGABRT
    file.unlink()
    assert found.read() == " lost"
    before = len(list(Path("/proc/self/fd").iterdir()))
    found.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before - 1


def test_those_that_go_to_no_file_are_not_waited_for() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        with pytest.raises(FileNotFoundError, match="is no file"):
            LastWords(process.pid)
        process.communicate(b"\n")
    with pytest.raises(FileNotFoundError):
        LastWords(process.pid)
