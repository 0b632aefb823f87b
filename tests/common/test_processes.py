"""A process lives until it has ended, also where nobody has asked for its end yet, and has a time at which it began."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.common import processes


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]) as found:
        yield found
        found.kill()


def test_a_process_lives_until_it_has_ended(child: subprocess.Popen[bytes]) -> None:
    assert processes.lives(child.pid)
    pidfd = os.pidfd_open(child.pid)
    assert not processes.has_ended(pidfd)
    child.kill()
    processes.wait_for_end(child.pid)
    assert processes.has_ended(pidfd)
    assert processes.state(child.pid) == "Z"  # nobody has asked for its end
    assert not processes.lives(child.pid)
    os.close(pidfd)
    child.wait()
    processes.wait_for_end(child.pid)
    assert not processes.lives(child.pid)
    assert (processes.state(child.pid), processes.started(child.pid)) == ("", None)


def test_a_kernel_without_descriptors_of_processes_is_asked_again_and_again(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(pid: int) -> int:  # noqa: ARG001
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    looks: list[float] = []

    def end(seconds: float) -> None:
        looks.append(seconds)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    monkeypatch.setattr(processes, "process_descriptor", lacking)
    monkeypatch.setattr(processes, "time", SimpleNamespace(sleep=end))
    processes.wait_for_end(child.pid)
    assert len(looks) == 1


def test_a_process_that_is_stopped_lives(child: subprocess.Popen[bytes]) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    assert processes.state(child.pid) == "T"
    assert processes.lives(child.pid)


def test_its_name_may_look_like_its_state(tmp_path: Path) -> None:
    program = tmp_path / "a) Z (b"
    program.symlink_to(sys.executable)
    with subprocess.Popen([program, "-I", "-S", "-c", "print(flush=True); input()"], stdin=-1, stdout=-1) as named:
        assert named.stdout is not None
        named.stdout.readline()
        assert Path(f"/proc/{named.pid}/comm").read_text() == f"{program.name}\n"
        assert processes.lives(named.pid)
        named.kill()


def test_nobody_is_dead_because_this_process_may_open_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_path: Path, **_: str) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_text", refuses)
    assert processes.lives(os.getpid())


def test_the_other_side_of_a_socket_is_known(child: subprocess.Popen[bytes]) -> None:
    here, there = socket.socketpair()
    with here, there:
        assert processes.peer_credentials(here) == (os.getpid(), os.geteuid())
        assert processes.open_pidfd(here) is None  # this process itself
    assert processes.started(child.pid) != processes.started(os.getppid())


POOL = """
import multiprocessing, os, signal, sys
from orchestrator.common import processes

processes.handle(signal.SIGTERM, processes.disregarded)
processes.handle(signal.SIGINT, processes.disregarded)
with multiprocessing.Pool(2) as pool:
    print(pool.map(abs, [-1, 2]))
processes.handle(signal.SIGINT, lambda *_: None)
signal.signal(signal.SIGTERM, of_user := lambda *_: None)
if not os.fork():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is of_user
    print("forked", flush=True)
    os._exit(0)
os.wait()
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGINT)
print("lives")
"""


EARLY = """
import os, signal
from orchestrator.common import processes

parent = os.getpid()
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))  # before it heeds signals again
processes.handle(signal.SIGTERM, processes.disregarded)
if not (child := os.fork()):
    os._exit(0)
os.kill(parent, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_signal_that_comes_right_after_a_fork_is_not_lost() -> None:
    """`multiprocessing.Pool` waited for good where it ended a process that had just begun."""
    done = subprocess.run([sys.executable, "-c", EARLY], stdout=subprocess.PIPE, timeout=60, check=True)
    assert done.stdout.decode() == f"-{int(signal.SIGTERM)}\n"


def test_who_is_forked_from_one_that_heeds_no_signal_heeds_them() -> None:
    """`multiprocessing.Pool` in a pipeline ended its processes by SIGTERM, and waited for them for good."""
    done = subprocess.run([sys.executable, "-c", POOL], stdout=subprocess.PIPE, timeout=60, check=True)
    assert sorted(done.stdout.decode().split("\n")) == ["", "[1, 2]", "forked", "lives"]
