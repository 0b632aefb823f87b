"""Processes of this machine, as the kernel tells of them: which one lives, which one it is, and when it ends.

    lives(pid)               not so one that has ended and whose end nobody has asked for yet
    state(pid)               the letter that ps shows, such as R, S, D or T
    started(pid)             with its number it names a process for good
    namespace()              where numbers of processes count: a machine, and a container on it, has its own
    wait_for_end(pid)        until it is gone
    open_pidfd(connection)   a descriptor of the process on the other side; has_ended(pidfd)
    peer_credentials(connection)
    handle(number, handler)  of a signal, here and not in processes that are forked

It does not ask for a process of another machine, which Ray, a lock or a lease tells of. Programs that start without this
package (`sessions/agent.py`, `supervision/supervisor.py`, `forkserver/client.py`) ask the kernel by themselves. Source:
proc_pid_stat(5), pidfd_open(2), SO_PEERCRED in unix(7). Linux only.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from orchestrator.common.descriptors import readable
from orchestrator.common.kernel_calls import process_descriptor

Handler = Callable[[int, FrameType | None], object]

_handled: list[tuple[int, Handler]] = []  # by this process
_held = threading.local()  # mask: the signals that were blocked before a fork
_CREDENTIALS = struct.Struct("3i")
_LOOK_S = 0.5  # between two looks at a process, where the kernel does not tell of its end
_STATE, _STARTED = 0, 19  # of the fields after the name


def lives(pid: int) -> bool:
    """True too where that cannot be told, as when this process has no descriptor left."""
    try:
        return _stat(pid)[_STATE] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return True


def state(pid: int) -> str:
    """Empty where there is no such process."""
    try:
        return _stat(pid)[_STATE]
    except OSError:
        return ""


def started(pid: int) -> str | None:
    """In clock ticks since boot; None where there is no such process."""
    try:
        return _stat(pid)[_STARTED]
    except OSError:
        return None


def namespace() -> str:
    """As pid_namespaces(7) has it, with the name of the machine, since the first one has the same number on each; processes of
    another one are not seen."""
    machine = os.uname().nodename
    try:
        return f"{machine} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return machine


def wait_for_end(pid: int) -> None:
    try:
        descriptor = process_descriptor(pid)
    except ProcessLookupError:
        return
    except OSError:  # a kernel without them
        while lives(pid):
            time.sleep(_LOOK_S)
        return
    readable([descriptor])
    os.close(descriptor)


def has_ended(pidfd: int) -> bool:
    return bool(readable([pidfd], 0))


def open_pidfd(connection: socket.socket) -> int | None:
    """A descriptor that becomes readable when the peer's process ends; None when there is none to be had."""
    pid, _ = peer_credentials(connection)
    if pid in (0, os.getpid()):
        return None
    try:
        return process_descriptor(pid)
    except OSError:  # already dead (its socket will tell), or another PID namespace, or a kernel without pidfds
        return None


def peer_credentials(connection: socket.socket) -> tuple[int, int]:
    """(process id, user id) of the other end of a Unix socket; the process id is 0 if it cannot be seen from here."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    return pid, uid


def _stat(pid: int) -> list[str]:
    """The fields after the name, which may hold any character. Raises OSError."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def disregarded(_number: int, _frame: FrameType | None) -> None:
    """The handler of signals that a process does not heed. While it is set, no signal raises KeyboardInterrupt."""


def handle(number: int, handler: Handler) -> None:
    """Have this process, and none that is forked from it, handle a signal so: `multiprocessing.Pool` ends its processes by
    SIGTERM, and waits for them."""
    if not _handled:
        os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_forked)
    signal.signal(number, handler)
    if (number, handler) not in _handled:
        _handled.append((number, handler))


def _hold() -> None:
    """Before a fork: what is not heeded here waits for the new process to heed it, since Python forgets what comes until then.
    Handlers that may raise are left out, as an exception is lost in these functions."""
    numbers = {number for number, _ in _handled if signal.getsignal(number) is disregarded}
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)


def _let_go() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


def _forked() -> None:
    for number in {number for number, _ in _handled}:
        if (number, signal.getsignal(number)) in _handled:  # and the user's code has set no other
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _let_go()
