"""Limits of the shell are named before a launch comes to them."""

from __future__ import annotations

import os
import resource

import pytest

from orchestrator.driver.preflight import limits

NONE = dict.fromkeys(
    (resource.RLIMIT_FSIZE, resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE), resource.RLIM_INFINITY
)


@pytest.mark.parametrize(
    ("kind", "limit", "said"),
    [
        (resource.RLIMIT_FSIZE, 1024**2, "no file of this run can grow beyond 1.05 MB, the limit of ulimit -f"),
        (resource.RLIMIT_AS, 2 * 10**9, "ulimit -v leaves each process 2 GB of addresses, and Ray takes 3 GB"),
        (resource.RLIMIT_NOFILE, 48, "ulimit -n leaves each process 48 open files, and Ray starts with 64"),
        (
            resource.RLIMIT_NPROC,
            120,
            "ulimit -u leaves this user 120 processes and threads, and this run starts about 150",
        ),
    ],
)
def test_a_limit_that_a_launch_may_come_to_is_named(
    kind: int, limit: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (told,) = limits.notes(2, {**NONE, kind: limit}.__getitem__, lambda: None)
    assert told.startswith(said)


def test_nothing_is_said_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [*limits.notes(2, NONE.__getitem__, lambda: None)]
    large = {
        **NONE,
        resource.RLIMIT_FSIZE: resource.RLIM_INFINITY,
        resource.RLIMIT_AS: 10**10,
        resource.RLIMIT_NPROC: 4096,
    }
    assert not [*limits.notes(2, large.__getitem__, lambda: None)]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert not [*limits.notes(2, {**NONE, resource.RLIMIT_NPROC: 20}.__getitem__, lambda: None)]


@pytest.mark.parametrize(("left", "told"), [(None, False), (150, False), (149, True), (-3, True)])
def test_so_is_that_of_a_control_group_also_for_root(left: int | None, told: bool) -> None:
    found = [*limits.notes(2, NONE.__getitem__, lambda: left)]
    assert [each.partition(":")[0] for each in found] == [
        f"the control group of this process leaves it {left} processes and threads, and this run starts about 150"
    ] * told
