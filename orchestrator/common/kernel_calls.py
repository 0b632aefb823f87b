"""Calls of the kernel that a Python may lack: it has those that were known where it was built, and Pythons of conda and uv were
built on old systems.

They go through the C library of the machine. It has memfd_create since glibc 2.27, and torch needs a later one; the numbers of
the other two are the same on all machines. A kernel may lack those (Linux 5.3), which is an OSError.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
from typing import Final

_CLOEXEC, _ALLOW_SEALING = 1, 2  # linux/memfd.h
_ADD_SEALS, _GET_SEALS = 1033, 1034  # linux/fcntl.h
_SEAL, _SHRINK, _GROW = 1, 2, 4  # likewise
_PIDFD_SEND_SIGNAL, _PIDFD_OPEN = 424, 434  # asm-generic/unistd.h

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def memory_file(name: str) -> int:
    """A descriptor of new memory that has no name in a file system (memfd_create(2)); it is not inherited. Raises OSError."""
    return _answered(_libc.memfd_create(name.encode(), _CLOEXEC | _ALLOW_SEALING))


def seal_size(descriptor: int) -> None:
    """From now on nobody changes the size of this memory file. Raises OSError."""
    fcntl.fcntl(descriptor, _ADD_SEALS, _SEAL | _SHRINK | _GROW)


def has_fixed_size(descriptor: int) -> bool:
    """Whether a file cannot shrink. Raises OSError where it is no memory file."""
    return bool(fcntl.fcntl(descriptor, _GET_SEALS) & _SHRINK)


def process_descriptor(pid: int) -> int:
    """Readable when the process has ended (pidfd_open(2)); it is not inherited. Raises OSError, as ProcessLookupError."""
    return _answered(_libc.syscall(_PIDFD_OPEN, ctypes.c_long(pid), ctypes.c_long(0)))


def kill(descriptor: int) -> None:
    """Kill the process of this descriptor (pidfd_send_signal(2)). Raises OSError, ProcessLookupError among them."""
    arguments = (descriptor, signal.SIGKILL, 0, 0)
    _answered(_libc.syscall(_PIDFD_SEND_SIGNAL, *map(ctypes.c_long, arguments)))


def _answered(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
