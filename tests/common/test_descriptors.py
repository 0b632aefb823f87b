"""Descriptors are waited for, also where a process has more open than `select.select` knows of."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator

import pytest

from orchestrator.common.descriptors import readable

BEYOND_SELECT = 1024


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe whose reading end has a high number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * BEYOND_SELECT:
        pytest.skip("no process of this user may have so many descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * BEYOND_SELECT), hard))
    low, write = os.pipe()
    read = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, BEYOND_SELECT)
    os.close(low)
    yield read, write
    for descriptor in (read, write):
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_has_come_and_what_is_over_can_be_read(pipe: tuple[int, int]) -> None:
    read, write = pipe
    assert readable([read], 0) == []
    os.write(write, b"x")
    assert readable([read], 0) == readable([read]) == [read]
    os.read(read, 1)
    other, closed = os.pipe()
    os.close(closed)
    assert readable([read, other]) == [other]
    os.close(other)
