"""The control groups of this process that limit memory and processes, and whom the kernel has killed for want of memory.

Source: Documentation/admin-guide/cgroup-v2.rst ("memory.events", "pids.max"), cgroup-v1/memory.rst ("memory.oom_control") and
cgroup-v1/pids.rst; "oom_kill" of /proc/vmstat counts all of the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_COUNTS = ("memory.events", "memory.oom_control")  # of version 2 and of version 1


def memory_groups(root: Path = Path("/")) -> Iterator[Path]:
    """The folders of this process's memory groups, innermost first. Inside a container some may not be visible. root: holds
    proc/ and sys/, for tests."""
    return _groups("memory", root)


def processes_left(root: Path = Path("/")) -> int | None:
    """How many more processes and threads the control groups of this process allow; None where they have no limit."""
    left = []
    with suppress(OSError):
        for group in _groups("pids", root):
            with suppress(OSError, ValueError):  # it lacks this controller, or a limit ("max")
                left.append(int((group / "pids.max").read_text()) - int((group / "pids.current").read_text()))
    return min(left, default=None)


def _groups(controller: str, root: Path) -> Iterator[Path]:
    mounts = root / "sys/fs/cgroup"
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", controller):
            continue
        mount = mounts / controller if controllers else mounts
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
