"""The last words of a member's process: the end of what it has written to its standard error.

Python's own words go to the event queue (`capture_prints`), so libraries in C++ say the rest. An exception that nothing
catches, such as that of a destructor, aborts the process, and its text stands there alone. Ray has the descriptor lead to a
file for each process. It is opened while the process lives, so that it can be read when process and file are gone. Linux only,
and of processes of this host: the relay of each host opens those there (`post_mortem.py`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_MOST_BYTES: Final = 2**20  # Ray puts the stacks behind them


class StderrTail:
    """Those of one process."""

    def __init__(self, pid: int) -> None:
        """Raises OSError when there are none to be read: the process is dead already, or writes to no file."""
        path = Path(f"/proc/{pid}/fd/2")
        if not path.is_file():  # to open a pipe would wait for its other end
            raise FileNotFoundError(f"{path} is no file")
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> str:
        """The last megabyte of them at most."""
        size = os.fstat(self._file).st_size
        return os.pread(self._file, _MOST_BYTES, max(0, size - _MOST_BYTES)).decode(errors="replace")

    def close(self) -> None:
        os.close(self._file)
