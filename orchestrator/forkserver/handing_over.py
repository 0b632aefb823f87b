"""Hands a command over to a process of the pool, and stands for it: signals go there, its exit code comes back.

What is typed behaves as ever: environment, folder, terminal, limits and rights are those of this process. Where the pool
refuses, one line says why, and the command runs here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from orchestrator.forkserver import client, likeness, places

_STAY = frozenset({"warm", "doctor", "--help", "-h"})  # what runs here in any case; doctor loads torch in its own way
_PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
)
_GONE = "the process of the warm pool that ran this command is gone, and how it ended is not known"


def handed_over(argv: Sequence[str]) -> int | None:
    """The exit code of the command; None where there is no pool that takes it, so that it has to run here."""
    if _STAY & {argument.partition("=")[0] for argument in argv[1:]}:
        return None
    place = places.pooled("driver")
    connection = None if place is None else client.connected(str(place))
    if connection is None:
        if place is not None:
            places.remove_abandoned()
        return None
    path = ["", *(each for each in sys.path[1:])] if sys.path[:1] in ([""], [str(Path.cwd())]) else list(sys.path)
    request = {"argv": list(argv), "environ": dict(os.environ), "path": path, "flags": likeness.flags()}
    with connection:
        answer = client.ask(connection, {**request, "interpreter": sys.executable, "tells": True})
        if answer is None or "pid" not in answer:
            why = "it has ended" if answer is None else answer.get("refused", "it does not understand this command")
            print(f"note: the warm pool is not used: {why}", file=sys.stderr)
            return None
        return _stood_for(connection, answer["pid"])


def _stood_for(connection: client.socket.socket, process: int) -> int:
    """Pass signals on until the process has ended."""
    descriptor = os.pidfd_open(process)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, number)

    def stop(_number: int, _frame: FrameType | None) -> None:
        pass_on(signal.SIGSTOP, None)
        os.kill(os.getpid(), signal.SIGSTOP)

    for number in _PASSED_ON:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as the command itself does
            signal.signal(number, pass_on)
    signal.signal(signal.SIGTSTP, stop)
    try:
        found, _ = client.receive(connection)
    except (OSError, ValueError):
        found = None
    if found is None:
        print(f"error: {_GONE}", file=sys.stderr)
        return 1
    return _ended(found["status"])


def _ended(status: int) -> int:
    """As the process has ended: by a signal, too, which a shell tells from an exit code."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code
