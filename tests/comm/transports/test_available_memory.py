"""The machine's memory and the control groups', over a made-up /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.comm.transports.available_memory import available_bytes


def write(root: Path, files: dict[str, object]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")


MEMINFO = "MemTotal:        4000 kB\nMemFree:          500 kB\nMemAvailable:     2000 kB"
MACHINE = 2000 * 1024


def group_v2(limit: object, used: int, cache: int) -> dict[str, object]:
    return {"memory.max": limit, "memory.current": used, "memory.stat": f"anon 5\ninactive_file {cache}"}


def group_v1(limit: int, used: int, cache: int) -> dict[str, object]:
    stat = f"inactive_file 1\ntotal_inactive_file {cache}"
    return {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used, "memory.stat": stat}


def test_without_groups_it_is_what_the_machine_has(tmp_path: Path) -> None:
    write(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/somewhere/not/visible"})
    assert available_bytes(tmp_path) == MACHINE


@pytest.mark.parametrize(
    ("lines", "mount", "inner", "outer", "expected"),
    [
        ("0::/a/b", "", group_v2("max", 1, 0), group_v2("max", 1, 0), MACHINE),
        ("0::/a/b", "", group_v2(1000, 400, 50), group_v2("max", 9, 0), 650),
        ("0::/a/b", "", group_v2("max", 400, 0), group_v2(1000, 900, 0), 100),
        ("3:cpu:/x\n4:memory:/a/b", "memory", group_v1(1000, 400, 50), group_v1(2**63 - 4096, 9, 0), 650),
        ("4:memory:/a/b\n0::/", "memory", group_v1(2**63 - 4096, 9, 0), group_v1(1000, 900, 0), 100),
    ],
    ids=["no limit", "version 2", "version 2, of the parent", "version 1", "version 1, of the parent"],
)
def test_the_tightest_group_counts(
    tmp_path: Path, lines: str, mount: str, inner: dict[str, object], outer: dict[str, object], expected: int
) -> None:
    top = Path("sys/fs/cgroup") / mount / "a"
    write(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": lines})
    write(tmp_path / top, outer)
    write(tmp_path / top / "b", inner)
    assert available_bytes(tmp_path) == expected


@pytest.mark.parametrize(
    ("limit", "expected"), [("unlimited", MACHINE), ("1000000", 1_000_000 - 300 * 1024), ("1000", 0)]
)
def test_a_limit_of_addresses_counts(tmp_path: Path, limit: str, expected: int) -> None:
    limits = f"Limit  Soft Limit  Hard Limit  Units\nMax data size  5  5  bytes\nMax address space  {limit}  unlimited  bytes"
    status = "Name:\tpython\nVmPeak:\t    900 kB\nVmSize:\t    300 kB"
    write(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/", "proc/self/limits": limits})
    write(tmp_path, {"proc/self/status": status})
    assert available_bytes(tmp_path) == expected


def test_this_machine_has_some() -> None:
    assert available_bytes() > 1 << 20
