"""The post-mortem of a member that has died: its crash record, and the end of its standard error.

The relay of its host opens both through /proc when the member connects, and reads them when the member is gone. So a death on
another host is known as well as one on the driver's, as long as that host lives. Linux only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from orchestrator.cluster.actors.stderr_tail import StderrTail
from orchestrator.worker.member.crash_record import CrashRecordReader


class PostMortem(NamedTuple):
    """All of it is empty where nothing is known."""

    activity: Mapping[str, Any] | None = None  # the last one, in the form of its heartbeat
    card: str = ""  # the UUID of its GPU
    standard_error: str = ""  # the end of it
    not_set_up: str = ""  # why its process never began, as Ray has told


class Witness:
    """The one of a process."""

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
