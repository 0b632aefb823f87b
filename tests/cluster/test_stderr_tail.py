"""The last words of a process, read when it is gone; true processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cluster.actors import post_mortem
from orchestrator.cluster.actors.host_relay import RelayActor
from orchestrator.cluster.actors.post_mortem import PostMortem, StderrTail
from tests.cluster.callers import exchanged
from tests.projects import REPOSITORY

_LONG_S = 60.0  # reached only when a test hangs
ENDS = "import os, sys; sys.stdin.readline(); os.write(2, b'{}'); os.abort()"


def test_they_are_heard_when_process_and_file_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_mortem, "_MOST_BYTES", 5)
    file = tmp_path / "err"
    with file.open("w") as err:
        command = [sys.executable, "-c", ENDS.format("all is lost")]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=err)
    found = StderrTail(process.pid)
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
            StderrTail(process.pid)
        process.communicate(b"\n")
    with pytest.raises(FileNotFoundError):
        StderrTail(process.pid)


MEMBER = """
import os, socket, sys
from orchestrator.cluster.actors.host_relay import address, hello
from orchestrator.worker.member.crash_record import CrashRecord
from tests.cluster.callers import packed
node, forks = sys.argv[1], sys.argv[2] == "forks"
record = CrashRecord()
record.note("compute", 7, 3)
record.note_card("GPU-7")
relay = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
relay.connect(address(b"secret", node))
relay.sendall(hello(b"secret", 1, record.fd) + packed(0, urgent=True))
if forks and not os.fork():
    sys.stdin.read()
    os._exit(0)
os.read(int(sys.argv[3]), 1)
os.write(2, b"all is lost")
os.abort()
"""


@pytest.mark.parametrize("forks", [False, True])
def test_the_relay_of_a_host_tells_what_a_dead_member_did_and_said(tmp_path: Path, forks: bool) -> None:
    """Also where a process that it has forked holds its connection, if the driver tells of its death."""
    node, file = f"node of {os.getpid()}", tmp_path / "err"
    actor = RelayActor(b"secret", node)
    go_on, told = os.pipe()
    command = [sys.executable, "-c", MEMBER, node, "forks" if forks else "", str(go_on)]
    with file.open("w") as err:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=err, cwd=REPOSITORY, pass_fds=(go_on,))
    (report,), ended = exchanged(actor, _LONG_S)
    assert (report.member, ended) == (1, {})
    os.close(told)
    assert process.wait() == -signal.SIGABRT
    file.unlink()
    if forks:
        actor.died([1])
    found = PostMortem({"activity": "compute", "step": 7, "shard": 3, "beats": 1}, "GPU-7", "all is lost")
    assert exchanged(actor, _LONG_S) == ([], {1: found})
    actor.died([1, 2])
    assert exchanged(actor, _LONG_S, dropped=[1])[1] == {1: PostMortem(), 2: PostMortem()}
    actor._relay.close()
    process.communicate()
    os.close(go_on)
