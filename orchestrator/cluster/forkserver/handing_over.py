"""Hands a command over to a process of the pool, and stands for it: signals go there, its exit code comes back.

What is typed behaves as ever: environment, folder, terminal, limits and rights are those of this process. Where the pool
refuses, one line says why, and the command runs here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from orchestrator.cluster.forkserver import client, likeness, places
from orchestrator.errors import Interrupted
from orchestrator.records import phases

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
_REPETITIONS = (
    "/.orchestrator/worktrees/"  # where reruns execute commands that nobody typed, with the variables of the record
)
_ANSWER_S = 20.0  # of a server that is ready
_GONE = "the process of the warm pool that ran this command is gone, and how it ended is not known"


def handed_over(argv: Sequence[str], program: str) -> int | None:
    """The exit code of the command; None where there is no pool that takes it, so that it has to run here. program: the module
    whose `main` it is."""
    if _STAY & {argument.partition("=")[0] for argument in argv[1:]}:
        return None
    place = places.pooled("driver")
    connection = None if place is None else client.connected(str(place))
    if connection is None:
        if place is not None:
            places.remove_abandoned()
        return None
    with connection:
        try:
            answer = client.ask(connection, {**_request(argv), "program": program}, _ANSWER_S)
        except KeyboardInterrupt:
            print("error: interrupted by SIGINT", file=sys.stderr)
            return Interrupted.exit_code
        if answer is None or "forked" not in answer:
            why = "it does not answer" if answer is None else answer.get("refused", "it has ended")
            if _REPETITIONS not in f"{Path.cwd()}/":
                print(f"note: the warm pool is not used: {why}", file=sys.stderr)
            return None
        return _stood_for(connection, answer["forked"])


def _request(argv: Sequence[str]) -> client.Message:
    return {
        "argv": list(argv),
        "environ": dict(os.environ),
        "path": ["", *sys.path[1:]] if sys.path[:1] in ([""], [str(Path.cwd())]) else list(sys.path),
        "flags": likeness.flags(),
        "interpreter": sys.executable,
        "began": phases.process_began(),
    }


def _stood_for(connection: socket.socket, process: int) -> int:
    """Pass signals on until the process has ended."""
    descriptor: int | None = None
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        descriptor = os.pidfd_open(process)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if descriptor is not None:
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
