"""The control groups of this process that limit its memory, and whom the kernel has killed for want of it.

Source: memory controller, Documentation/admin-guide/cgroup-v2.rst ("memory.events") and cgroup-v1/memory.rst
("memory.oom_control"); "oom_kill" of /proc/vmstat counts all of the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_COUNTS = ("memory.events", "memory.oom_control")  # of version 2 and of version 1


def memory_groups(root: Path = Path("/")) -> Iterator[Path]:
    """The folders of this process's memory groups, innermost first. Inside a container some may not be visible. root: holds
    proc/ and sys/, for tests."""
    mounts = root / "sys/fs/cgroup"
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        mount = mounts / "memory" if controllers else mounts
        own = mount / path.lstrip("/")
        yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(mount))


def oom_kills(root: Path = Path("/")) -> int | None:
    """How many processes the out-of-memory killer has ended: of this process's group where that is counted, else of the
    machine. None where nobody counts."""
    try:
        places = [group / name for group in memory_groups(root) for name in _COUNTS]
    except OSError:
        places = []
    for place in (*places, root / "proc/vmstat"):
        try:
            lines = place.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None


def killer_in_words(kills: int | None) -> str:
    """The part that the out-of-memory killer may have in the end of a process, for a remedy. kills: how many processes it
    has ended meanwhile; None where that is not known."""
    if kills is None:
        return "unless somebody killed it, look for the kernel's out-of-memory killer (dmesg)"
    if kills == 0:
        return (
            "the kernel's out-of-memory killer has ended no process here meanwhile: look for who else did (journalctl)"
        )
    ended = f"the kernel's out-of-memory killer has ended {kills} process{'es' * (kills > 1)} here meanwhile"
    return f"{ended}: use fewer workers on a machine, a smaller model, or more memory"
