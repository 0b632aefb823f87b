"""The post-mortem of a member that has died: its crash record, and the end of its standard error.

The relay of its host opens both through /proc when the member connects, and reads them when the member is gone. So a death on
another host is known as well as one on the driver's, as long as that host lives. Linux only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from orchestrator.worker.member.crash_record import CrashRecordReader

_MOST_BYTES: Final = 2**20  # Ray puts the stacks behind them


class PostMortem(NamedTuple):
    """All of it is empty where nothing is known."""

    activity: Mapping[str, Any] | None = None  # the last one, in the form of its heartbeat
    card: str = ""  # the UUID of its GPU
    standard_error: str = ""  # the end of it
    not_set_up: str = ""  # why its process never began, as Ray has told


class StderrTail:
    """The end of what one process has written to its standard error.

    Python's own words go to the event queue (`capture_prints`), so libraries in C++ say the rest. An exception that nothing
    catches, such as that of a destructor, aborts the process, and its text stands there alone. Ray has the descriptor lead to
    a file for each process. It is opened while the process lives, so that it can be read when process and file are gone."""

    def __init__(self, pid: int) -> None:
        """Raises OSError when there is nothing to be read: the process is dead already, or writes to no file."""
        path = Path(f"/proc/{pid}/fd/2")
        if not path.is_file():  # to open a pipe would wait for its other end
            raise FileNotFoundError(f"{path} is no file")
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> str:
        """The last megabyte of it at most."""
        size = os.fstat(self._file).st_size
        return os.pread(self._file, _MOST_BYTES, max(0, size - _MOST_BYTES)).decode(errors="replace")

    def close(self) -> None:
        os.close(self._file)


class Witness:
    """Reads the post-mortem of a process."""

    def __init__(self, crash_record: CrashRecordReader, stderr_tail: StderrTail | None) -> None:
        self._crash_record = crash_record
        self._stderr_tail = stderr_tail

    @classmethod
    def of(cls, pid: int, crash_record: int) -> Self | None:
        """None where its crash record cannot be opened: it is dead already, or was never there. crash_record: its descriptor
        in that process."""
        try:
            record = CrashRecordReader(pid, crash_record)
        except OSError:
            return None
        with contextlib.suppress(OSError):
            return cls(record, StderrTail(pid))
        return cls(record, None)

    def tells(self) -> PostMortem:
        said = "" if self._stderr_tail is None else self._stderr_tail.read()
        return PostMortem(self._crash_record.last(), self._crash_record.card(), said)

    def close(self) -> None:
        self._crash_record.close()
        if self._stderr_tail is not None:
            self._stderr_tail.close()
