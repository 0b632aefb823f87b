"""A record of what a member was doing when it died: a small piece of memory that outlives it, because the relay of its host
has mapped it too.

The last heartbeat that the driver has received is older than the death that it has to explain, and the death of a lone
worker ends the run's state too. A memfd has no name, so nothing stays behind; the relay on the same host opens it
through /proc while the member lives, and the kernel keeps the pages as long as they are mapped. To note an activity
costs a few stores and no system call.

A member may die between two stores. Therefore two records are written by turns, and the word that says which one is
complete is written last; a word of eight bytes is written at once.

Source: memfd_create(2), proc_pid_fd(5). Linux only. It does not report on a living member, whose heartbeat is asked
instead.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args

from orchestrator.common.kernel_calls import memory_file
from orchestrator.records.progress import Activity

_NAME: Final = "orchestrator-crash-record"
_ACTIVITIES: Final[tuple[Activity, ...]] = get_args(Activity)
_SIZE_BYTES: Final = mmap.PAGESIZE
_RECORD: Final = 3  # words: activity, step, shard; -1 where there is none
_CARD: Final = 64  # the byte that says how long the UUID of the card is, which follows it


class CrashRecord:
    """The member's side: writes the record. Only one thread at a time may call `note`."""

    def __init__(self) -> None:
        self.fd = memory_file(_NAME)
        os.ftruncate(self.fd, _SIZE_BYTES)
        self._words = memoryview(mmap.mmap(self.fd, _SIZE_BYTES)).cast("q")

    def note(self, activity: Activity, step: int | None, shard: int | None) -> None:
        words, notes = self._words, self._words[0] + 1
        record = _start_of(notes)
        words[record] = _ACTIVITIES.index(activity)
        words[record + 1] = -1 if step is None else step
        words[record + 2] = -1 if shard is None else shard
        words[0] = notes

    def note_card(self, uuid: str) -> None:
        """This member computes on that GPU from now on. To be called once."""
        text, there = uuid.encode(), self._words.cast("B")
        there[_CARD + 1 : _CARD + 1 + len(text)] = text
        there[_CARD] = len(text)


class CrashRecordReader:
    """The other side: reads the record of the member that is process `pid` and reported the descriptor `fd`."""

    def __init__(self, pid: int, fd: int) -> None:
        """Raises OSError when there is none: the member is dead already, or another user's."""
        path = Path(f"/proc/{pid}/fd/{fd}")
        if _NAME not in str(path.readlink()):
            raise FileNotFoundError(f"{path} is no crash record")
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(handle, _SIZE_BYTES, prot=mmap.PROT_READ)
        finally:
            os.close(handle)
        self._words = memoryview(self._map).cast("q")

    def last(self) -> Mapping[str, Any] | None:
        """`{"activity", "step", "shard", "beats"}` as `Heartbeat.snapshot` has them; None before the first note."""
        notes = self._words[0]
        if notes == 0:
            return None
        activity, step, shard = self._words[_start_of(notes) : _start_of(notes) + _RECORD]
        found = {"step": step, "shard": shard}
        return {
            "activity": _ACTIVITIES[activity],
            **{key: None if n < 0 else n for key, n in found.items()},
            "beats": notes,
        }

    def card(self) -> str:
        """The UUID of its GPU; empty where it has none, or none yet."""
        there = self._words.cast("B")
        return bytes(there[_CARD + 1 : _CARD + 1 + there[_CARD]]).decode()

    def close(self) -> None:
        """Let go of the memory, and of the descriptor that Python keeps of whatever is mapped."""
        self._words.release()
        self._map.close()


def _start_of(notes: int) -> int:
    """The first word of the record that this note is in."""
    return 1 + notes % 2 * _RECORD
