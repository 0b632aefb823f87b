"""Questions of both sides of a job to their host."""

from __future__ import annotations

import ctypes
import signal
import socket

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_ANY_PORT = 9  # no datagram is sent


def end_with_parent() -> None:
    """In a new child, before its command: it is killed when its parent is gone. Slurm's own tracking may miss it, and the next
    attempt of the job would find the run in use."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def address_towards(host: str) -> str:
    """The address of this host under which the other one knows it: that of the way there. The name of this host is no help,
    since /etc/hosts often says 127.0.1.1. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((host, _ANY_PORT))
        address: str = way.getsockname()[0]
        return address
