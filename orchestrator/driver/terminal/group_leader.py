"""A program that runs a command, and ends it with all that it has started: by SIGINT, and by SIGKILL where that takes long.

It leads a process group. A signal that comes to it alone, as when its own parent is gone, reaches the whole group. Without that
what pip and the shell of a stage have started would go on, and hold the pipe that the parent reads.

Executed as a file, which imports nothing of this package.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

_PATIENCE_S = 5
_ASKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(command: list[str]) -> int:
    """The exit code of the command, as a shell tells it."""
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
    for number in _ASKED:
        signal.signal(number, lambda *_: _end())
    code = subprocess.Popen(command).wait()
    return code if code >= 0 else 128 - code


def _end() -> None:
    for number in _ASKED:
        signal.signal(number, signal.SIG_IGN)
    signal.alarm(_PATIENCE_S)
    os.killpg(0, signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
