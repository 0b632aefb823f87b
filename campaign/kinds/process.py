"""Faults of a process, done by itself at the very moment; or sent to it, if it is a signal."""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
from collections.abc import Callable

import torch

_ROOM_BYTES = 1 << 20
_WANTED_BYTES = 1 << 30


def strike(kind: str, hold_s: float) -> None:
    """Suffer this; returns where the process goes on, or raises what a process raises that is out of something. hold_s: for how
    long, where it is held up; whoever stops it has to have it continued."""
    if kind != "SIGTERM":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _DOES[kind](hold_s)


def send(name: str, pid: int) -> None:
    """This signal to another process. Raises ProcessLookupError."""
    os.kill(pid, signal.Signals[name])


def _kill_itself(number: signal.Signals) -> Callable[[float], None]:
    return lambda _: os.kill(os.getpid(), number)


def _read_nowhere(_: float) -> None:
    ctypes.string_at(0)


def _abort(_: float) -> None:
    os.abort()


def _exit(_: float) -> None:
    os._exit(3)


def _hold_interpreter(hold_s: float) -> None:
    ctypes.PyDLL(None).sleep(math.ceil(hold_s))  # which, unlike CDLL, keeps the lock of the interpreter


def _run_out_of_memory(_: float) -> None:
    with open("/proc/self/statm", encoding="ascii") as figures:
        taken = int(figures.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + _ROOM_BYTES, resource.RLIM_INFINITY))
    torch.empty(_WANTED_BYTES, dtype=torch.uint8)


def _run_out_of_descriptors(_: float) -> None:
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    for descriptor in range(highest + 1):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # takes this one, the lowest that is free


_DOES: dict[str, Callable[[float], None]] = {
    "SIGKILL": _kill_itself(signal.SIGKILL),
    "SIGTERM": _kill_itself(signal.SIGTERM),
    "SIGSEGV": _read_nowhere,
    "abort": _abort,
    "os._exit": _exit,
    "short stop": _kill_itself(signal.SIGSTOP),
    "long stop": _kill_itself(signal.SIGSTOP),
    "GIL held": _hold_interpreter,
    "out of memory": _run_out_of_memory,
    "out of descriptors": _run_out_of_descriptors,
}
