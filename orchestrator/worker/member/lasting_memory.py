"""Memory that outlives a worker, because the driver on its machine created it and holds it open; or that a worker holds open
for the others on its machine.

A memfd has no name, so nothing stays behind when the driver and its workers are gone, however they end; a worker opens the
other's descriptor through /proc. What lies in it is the business of `shard_slots.py` and of `claims.py`.

Source: memfd_create(2), proc_pid_fd(5). Linux only. Apart from `shard_slots.py` because it needs no torch.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

_NAME: Final = "orchestrator-lasting-memory"


def created() -> int:
    """A descriptor of empty memory, for who holds it open; it takes none until something is written."""
    return os.memfd_create(_NAME, os.MFD_CLOEXEC)


def opened(pid: int, fd: int) -> int:
    """A descriptor of the memory that process `pid` has as `fd`. Raises OSError where it cannot be reached."""
    path = Path(f"/proc/{pid}/fd/{fd}")
    if _NAME not in str(path.readlink()):
        raise FileNotFoundError(errno.ENOENT, "it is another file", str(path))
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)
