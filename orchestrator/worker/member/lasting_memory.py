"""Memory that a process holds open for others on its machine: the driver for workers, so that it outlives them, or a worker
for other workers.

A memfd has no name, so nothing stays behind when the driver and its workers are gone, however they end; a worker opens the
other's descriptor through /proc. The users of the memory lay it out: `shard_slots.py`, `shared_queue.py` and
`model/sharded_optimizer.py`.

Source: memfd_create(2), proc_pid_fd(5). Linux only. Apart from `shard_slots.py` because it needs no torch.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import Final

from orchestrator.common.kernel_calls import memory_file

_NAME: Final = "orchestrator-lasting-memory"


def created() -> int:
    """A descriptor of new memory, which exists as long as somebody holds it open; it takes no page until something is
    written."""
    return memory_file(_NAME)


def opened(pid: int, fd: int) -> int:
    """A descriptor of the memory that process `pid` has as `fd`. Raises OSError if it cannot be reached."""
    path = Path(f"/proc/{pid}/fd/{fd}")
    if _NAME not in str(path.readlink()):
        raise FileNotFoundError(errno.ENOENT, "it is another file", str(path))
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def in_pages(size_bytes: int) -> int:
    """The size of the pages that hold so many bytes."""
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
