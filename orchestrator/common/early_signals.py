"""Signals that come while a command imports its own code: they end it in order, as those that come later do. Nothing is
imported here that takes long: until `heed` is called, they end the process."""

from __future__ import annotations

import os
import sys


def is_command() -> bool:
    """Whether this process is a command of ours, by what it was started with, while it imports the package: a program of the
    user's own is not, nor is a process that a command has started."""
    if sys.argv[:1] == ["-m"]:
        return sys.orig_argv[-len(sys.argv)].removeprefix("-m") == "orchestrator"
    return os.path.basename("".join(sys.orig_argv[1:2])) == "orchestrator"  # noqa: PTH119 - pathlib takes 10 ms


def heed() -> None:
    """From now on SIGTERM and SIGHUP raise KeyboardInterrupt, as SIGINT does. One that is ignored, as by `nohup`, stays so."""
    import signal

    def interrupt(number: int, _frame: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, interrupt)


def tell(interrupt: KeyboardInterrupt) -> int:
    """Say which it was. Returns the exit code."""
    print(f"error: interrupted by {interrupt.args[0] if interrupt.args else 'SIGINT'}", file=sys.stderr)
    return 130
