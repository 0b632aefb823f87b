"""Processes that were killed for want of memory, over a made-up /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.common.control_groups import killer_in_words, oom_kills, processes_left

GROUP = "sys/fs/cgroup/a/b/memory.events"
OLD = "sys/fs/cgroup/memory/a/b/memory.oom_control"
MACHINE = {"proc/vmstat": "pgfault 7\noom_kill 9"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/cgroup": "0::/a/b", GROUP: "oom 4\noom_kill 2\noom_group_kill 0", **MACHINE}, 2),
        ({"proc/self/cgroup": "0::/a/b/c", GROUP: "low 0\noom_kill 3", **MACHINE}, 3),
        ({"proc/self/cgroup": "4:memory:/a/b", OLD: "oom_kill_disable 0\nunder_oom 0\noom_kill 1", **MACHINE}, 1),
        ({"proc/self/cgroup": "0::/", **MACHINE}, 9),
        (MACHINE, 9),
        ({"proc/self/cgroup": "0::/", "proc/vmstat": "pgfault 7"}, None),
        ({}, None),
    ],
    ids=["own group", "group above", "version 1", "machine", "no groups", "an old kernel", "nothing"],
)
def test_kills_are_counted_where_they_are_ours_or_else_the_machines(
    tmp_path: Path, files: dict[str, str], expected: int | None
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{content}\n")
    assert oom_kills(tmp_path) == expected


def test_the_out_of_memory_killer_is_accused_only_of_what_it_has_done() -> None:
    assert killer_in_words(None).startswith("unless somebody killed it")
    assert killer_in_words(0).startswith("the kernel's out-of-memory killer has ended no process here meanwhile")
    assert "has ended 1 process here meanwhile: use fewer workers" in killer_in_words(1)
    assert "has ended 2 processes here" in killer_in_words(2)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/pids": "max 5", "sys/fs/cgroup/a/pids": "100 93"}, 7),
        ({"proc/self/cgroup": "4:memory:/m\n3:pids:/a", "sys/fs/cgroup/pids/a/pids": "60 70"}, -10),
        ({"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/pids": "max 5"}, None),
        ({"proc/self/cgroup": "0::/a"}, None),
        ({}, None),
    ],
    ids=["group above", "version 1", "no limit", "no controller", "no groups"],
)
def test_processes_are_left_by_the_group_that_has_fewest(
    tmp_path: Path, files: dict[str, str], expected: int | None
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("pids"):
            most, current = content.split()
            (tmp_path / f"{name}.max").write_text(f"{most}\n")
            (tmp_path / f"{name}.current").write_text(f"{current}\n")
        else:
            (tmp_path / name).write_text(f"{content}\n")
    assert processes_left(tmp_path) == expected
