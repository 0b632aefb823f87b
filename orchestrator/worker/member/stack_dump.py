"""The stacks of all threads of a member, also of one that answers nothing: a signal has them written into memory.

The handler is `faulthandler`'s, in C: it needs no lock of the interpreter, so it works in a process that sleeps, waits for a
lock or for the disk, or computes in C without giving the lock back. The memory has no name, is made when the process starts,
and is read through /proc by the sender of the signal. A call that the signal interrupts goes on (SA_RESTART), and no random
number is drawn.

A process that SIGSTOP has stopped runs no handler; its state tells so (proc_pid_stat(5)), and py-spy reads it from outside
where it is installed and the kernel allows that.

It does not reach another host.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from orchestrator.common import processes
from orchestrator.common.kernel_calls import memory_file
from orchestrator.records.stacks import Home

_NAME: Final = "orchestrator-stacks"
SIGNAL: Final = signal.SIGRTMIN + 9  # which nobody else uses; without a handler it would end a process
_MOST_BYTES: Final = 2**18
_WAIT_S: Final = 1.0
_STILL_S: Final = 0.05  # a dump that has not grown for so long is whole
_SPY_S: Final = 5.0


class DumpTarget(NamedTuple):
    """A process whose stacks are asked for: its number, its descriptor of the memory, and where it finds its code."""

    pid: int
    fd: int
    home: Mapping[str, str]


class ProcessStacks(NamedTuple):
    """The stacks of a process. text: as faulthandler writes it, empty if nothing came; state: of the process as the kernel
    says it, such as T for a stopped one, or empty; spied: the output of py-spy, if it is there."""

    text: str
    state: str
    spied: str = ""


class StackDump:
    """The member's side; one for each process, from the main thread or any other."""

    def __init__(self) -> None:
        self._project = str(Path.cwd())  # the user's code may go elsewhere
        self._fd = memory_file(_NAME)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, os.O_APPEND)  # whoever asks empties it first
        faulthandler.register(SIGNAL, file=self._fd, all_threads=True, chain=False)
        weakref.finalize(self, _close, self._fd)

    @property
    def place(self) -> dict[str, Any]:
        """A `DumpTarget`, as plain data."""
        package = str(Path(__file__).parents[2])
        home = Home(self._project, package, sysconfig.get_path("stdlib"))
        return {"pid": os.getpid(), "fd": self._fd, "home": vars(home)}


def _close(fd: int) -> None:
    faulthandler.unregister(SIGNAL)
    os.close(fd)


def take(places: Sequence[DumpTarget]) -> list[ProcessStacks]:
    """The stacks of processes of this host, asked for at the same time: within little more than a second."""
    files = [_ask(place) for place in places]
    deadline = time.monotonic() + _WAIT_S
    found = [
        ProcessStacks(b"".join(_read(file, deadline)).decode(errors="replace"), processes.state(place.pid))
        for file, place in zip(files, places, strict=True)
    ]
    for file in files:
        if file is not None:
            os.close(file)
    return [seen._replace(spied=_spied(place.pid)) for seen, place in zip(found, places, strict=True)]


def _ask(place: DumpTarget) -> int | None:
    """Send the signal; returns the memory, empty before it, or None of a process that is gone or is another one by now."""
    path = Path(f"/proc/{place.pid}/fd/{place.fd}")
    try:
        if _NAME not in str(path.readlink()):
            return None
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    with suppress(OSError):
        os.ftruncate(file, 0)
        os.kill(place.pid, SIGNAL)
    return file


def _read(file: int | None, deadline: float) -> list[bytes]:
    """The content of the memory, once nothing more has come for a moment or the deadline has passed."""
    if file is None:
        return []
    size, since = 0, time.monotonic()
    while (now := time.monotonic()) < deadline and not (size and now - since > _STILL_S):
        if (grown := os.fstat(file).st_size) != size:
            size, since = grown, now
        time.sleep(_STILL_S / 10)
    return [os.pread(file, _MOST_BYTES, 0)]


def _spied(pid: int) -> str:
    """The output of py-spy, which lies beside this Python or on the path; empty if it is not there, or may not look."""
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        return ""
    command = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        ran = subprocess.run(command, capture_output=True, timeout=_SPY_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout[:_MOST_BYTES].decode(errors="replace") if ran.returncode == 0 else ""
