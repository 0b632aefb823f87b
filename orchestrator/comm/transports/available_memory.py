"""How much memory can be had now: what the machine has, or, if less, what the control groups of this process leave, or the
limit of its addresses (`ulimit -v`).

Why ask: a memfd that is too large is not refused by the kernel. It takes page after page until the OOM killer chooses
a victim, which may be anybody. Asked before, a full memory is an ordinary error with two numbers in it.

Source: "MemAvailable" in proc_pid_meminfo(5); memory controller, Documentation/admin-guide/cgroup-v2.rst and
cgroup-v1/memory.rst. Nothing is reserved: somebody else may take the memory between the question and the use.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orchestrator.common.control_groups import memory_groups

# For each version of control groups: limit, usage, and the name in memory.stat of the page cache that the kernel gives up
# first.
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_bytes(root: Path = Path("/")) -> int:
    """`root` holds proc/ and sys/, for tests."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    machine = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return min([machine, *(_left(group) for group in memory_groups(root)), *_addresses(root / "proc/self")])


def _addresses(process: Path) -> Iterator[int]:
    """The bytes that the limit of addresses leaves the process, if it has one."""
    limits = process / "limits"
    lines = limits.read_text().splitlines() if limits.exists() else []
    limit = next((line.split()[3] for line in lines if line.startswith("Max address space")), "unlimited")
    if limit != "unlimited":
        in_use = next(line for line in (process / "status").read_text().splitlines() if line.startswith("VmSize:"))
        yield max(0, int(limit) - int(in_use.split()[1]) * 1024)


def _left(group: Path) -> int:
    for limit, usage, cache in _FILES:
        if (group / limit).exists() and (allowed := (group / limit).read_text().strip()) != "max":
            statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            return int(allowed) - int((group / usage).read_text()) + int(statistics[cache])
    return 1 << 62
