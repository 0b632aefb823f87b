"""Limits of the shell (`ulimit`) and of control groups at which a launch may end. Libraries that come to them tell of a failed
allocation, a disk or nothing at all."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator

from orchestrator.common import control_groups
from orchestrator.common.figures import sized

_ADDRESSES = 3 * 10**9  # that Ray takes in the driver before anything is computed; 2 * 10**9 were too few
_FILES = 64  # that one worker and its Ray start with; with 48 they waited for each other for two minutes
_THREADS = 100, 25  # of a launch, with its Ray; of each worker


def notes(
    members: int,  # workers and servers that this process starts
    limit_of: Callable[[int], int] = lambda kind: resource.getrlimit(kind)[0],  # the soft limit of this kind
    left_by_groups: Callable[[], int | None] = control_groups.processes_left,  # by control groups
) -> Iterator[str]:
    """For the user."""
    size, addresses, threads, files = (
        limit_of(kind)
        for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE)
    )
    if size != resource.RLIM_INFINITY:
        yield f"no file of this run can grow beyond {sized(size)}, the limit of ulimit -f"
    if addresses != resource.RLIM_INFINITY and addresses < _ADDRESSES:
        yield f"ulimit -v leaves each process {sized(addresses)} of addresses, and Ray takes {sized(_ADDRESSES)}: raise it"
    if files != resource.RLIM_INFINITY and files < _FILES:
        yield f"ulimit -n leaves each process {files} open files, and Ray starts with {_FILES}: raise it"
    wanted = _THREADS[0] + _THREADS[1] * members
    if threads != resource.RLIM_INFINITY and threads < wanted and os.geteuid():  # root has no limit
        yield (
            f"ulimit -u leaves this user {threads} processes and threads, and this run starts about {wanted}: raise it, or "
            f"have fewer workers"
        )
    left = left_by_groups()
    if left is not None and left < wanted:
        yield (
            f"the control group of this process leaves it {left} processes and threads, and this run starts about {wanted}: "
            "raise its pids.max (--pids-limit of docker, TasksMax of systemd, podPidsLimit of Kubernetes) or have fewer workers"
        )
