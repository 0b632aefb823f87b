"""Shards that the workers of one host claim, each by one atomic instruction on a queue that all of them have mapped.

The queue has a cell per shard with a stamp: the generation and the step in which the shard was claimed last. To claim is to
write the stamp of the present step if an older one is there (an atomic maximum, which tells what was there), so one of all
workers that try it in a step succeeds. Stamps only grow, so nothing is ever reset. The stamps of a generation that broke off
are older than all that follow, and a worker that is late in such a generation finds newer stamps and gets nothing. Nobody
claims for step t + 1 before the vote of t is over, and nobody votes before all shards of its host are claimed; so one row of
cells is enough.

A claim orders no other memory, since it hands nothing over: the micro-batch is a function of (step, shard), and contributions
go through the vote and the sum as ever (rule C4).

A worker that cannot open the queue would compute shards that others take from it, so the others have to know. Each worker
therefore writes its generation beside the cells before its first vote, and in the first step of a generation nobody claims.
At the second step all look, and claim if all workers of the host have written.

The memory belongs to the worker of the lowest rank on the host, and the others open it through /proc. It need not outlive its
owner, since a generation ends when a member is lost.

The choice of a free shard is compiled, too (`numerics.loops`): Python that runs once in a step has left the processor's
cache. A worker takes the shards that were assigned to it front to back, then the last free one of whoever has most left, until
none is free. Others take from the back, because what is assigned is read ahead from the front (`data.loaders`).

The queue does not reach another host.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy
import torch

from orchestrator.comm.transports.shared_memory import Mapping as Mapped
from orchestrator.config.plan import Plan
from orchestrator.errors import Inconsistent
from orchestrator.numerics.exact import LOOPS
from orchestrator.worker.member import lasting_memory

_STEP_BITS: Final = 40
_UNDER_WAY: Final = 1  # micro-batch that a device still computes when the next one is claimed, so that it never idles


def is_used(plan: Plan, run_manifest: Mapping[str, Any]) -> bool:
    """Whether shards are claimed in a run, the same at all members."""
    return plan.cluster.claims and not run_manifest["shard_state"]


class MemoryHandle(NamedTuple):
    """The place of memory that the workers of a host share, such as its queue: the rank that owns it, its process, and its
    descriptor there."""

    rank: int
    pid: int
    fd: int


class QueueMemory:
    """Memory that a worker makes in case it comes to own what its host shares; it takes no page before it is used. handle:
    its process, and its descriptor there."""

    def __init__(self) -> None:
        fd = lasting_memory.created()
        self.handle = os.getpid(), fd
        weakref.finalize(self, os.close, fd)


class Assignment:
    """The shards that are assigned to the workers of a host, as compiled code reads them. assigned: the shards of each; own:
    the place of the worker that asks; kept: so many are left to each,
    since its loaders have read them ahead; stamp: of the step."""

    def __init__(self, assigned: Sequence[Sequence[int]], own: int, kept: int = 0) -> None:
        flat = [shard for shards in assigned for shard in shards]
        self._numbers = numpy.array([*flat, *accumulate(map(len, assigned), initial=0)], numpy.int64)
        at = self._numbers.__array_interface__["data"][0]
        self.stamp = ctypes.c_int64()
        self.arguments = self.stamp, at, at + 8 * len(flat), len(assigned), own, kept


class SharedQueue:
    """The cells of all shards of a run, and by rank the generation that a worker has joined last."""

    def __init__(self, fd: int, shards: int) -> None:
        """fd: stays the caller's, and may be closed. Raises OSError, MemoryError."""
        # To the same size in every worker, so it does not matter who comes first.
        os.posix_fallocate(fd, 0, 2 * 8 * shards)
        cells = Mapped(fd, 2 * 8 * shards, writable=True).tensor(torch.int64, 0, 2 * shards)
        self._address, self._shards = cells.data_ptr(), shards
        self._stamps, self._joined = cells.view(2, shards).numpy()
        self._assignment: Assignment | None = None

    def join(self, generation: int, rank: int) -> None:
        self._joined[rank] = generation + 1

    def joined(self, generation: int, ranks: Sequence[int]) -> bool:
        """Whether all of them have joined: to be asked when their votes have come."""
        return bool((self._joined[list(ranks)] == generation + 1).all())

    def claim(self, assignment: Assignment) -> int:
        """The shard that this worker computes next in the step of the assignment's stamp; -1: there is none left
        to it."""
        if assignment is not self._assignment:
            self._assignment = assignment
            self._claim = LOOPS.prepared("claim", self._address, self._shards, *assignment.arguments)
        return self._claim()

    def is_free(self, shard: int, stamp: int) -> bool:
        """Whether nobody has claimed the shard yet."""
        return bool(self._stamps[shard] < stamp)


def stamp_of(generation: int, step: int) -> int:
    return (generation << _STEP_BITS) + step + 1


def opened(handle: MemoryHandle, shards: int) -> SharedQueue:
    """The queue of a host. Raises OSError if it is out of reach, and MemoryError."""
    fd = lasting_memory.opened(handle.pid, handle.fd)
    try:
        return SharedQueue(fd, shards)
    finally:
        os.close(fd)


class QueueConsumer:
    """One worker's turns at the shards of its host, in one generation."""

    def __init__(
        self,
        queue: SharedQueue | None,  # of the host; None where it has none
        generation: int,  # its number
        rank: int,  # this worker's
        ranks: Sequence[int],  # of the workers of its host
        kept: int = 0,  # shards left to each worker, as in `Assignment`
    ) -> None:
        self._queue = queue
        self._generation = generation
        self._rank = rank
        self.ranks = ranks
        self._kept = kept
        self._steps = 0  # of this generation
        self._stamp = 0  # of the present step; 0: nobody claims in it
        self._mine: set[int] = set()
        self._assigned: Sequence[Sequence[int]] | None = None
        if queue is not None:
            queue.join(generation, rank)

    def turns(self, step: int, assigned: Sequence[Sequence[int]]) -> Iterator[int]:
        """The shards that this worker computes in a step, each when it is its turn. assigned: to each rank."""
        queue = self._begin(step)
        if queue is None:
            yield from assigned[self._rank]
            return
        if assigned is not self._assigned:
            beside = [assigned[rank] for rank in self.ranks]
            self._assignment, self._assigned = Assignment(beside, self.ranks.index(self._rank), self._kept), assigned
        self._assignment.stamp.value = self._stamp
        while (shard := queue.claim(self._assignment)) >= 0:
            self._mine.add(shard)
            yield shard

    def taken_by_other(self, step: int, shard: int) -> bool:
        """Whether another worker has claimed the shard in this step, the present one or a later one."""
        if self._queue is None or not self._stamp or stamp_of(self._generation, step) != self._stamp:
            return False
        return shard not in self._mine and not self._queue.is_free(shard, self._stamp)

    def _begin(self, step: int) -> SharedQueue | None:
        """The queue if shards are claimed in this step, or None."""
        if self._steps == 1 and self._queue is not None and not self._queue.joined(self._generation, self.ranks):
            self._queue = None
        goes = self._steps > 0 and self._queue is not None
        self._stamp = stamp_of(self._generation, step) if goes else 0
        self._steps += 1
        self._mine.clear()
        return self._queue if goes else None


def paced(turns: Iterator[int], mark: Callable[[], Callable[[], None]]) -> Iterator[int]:
    """These turns, each claimed when the device has come near it: launching takes a part of the time that a device computes,
    and who launches would claim all shards of slower workers at once. mark: as of `Staging`."""
    launched: deque[Callable[[], None]] = deque()
    for shard in turns:
        yield shard
        launched.append(mark())
        if len(launched) > _UNDER_WAY:
            launched.popleft()()


def check(step: int, rank: int, shards: Sequence[int], computed_by: Mapping[int, int], count: int) -> None:
    """Raises Inconsistent unless each of `count` shards was computed once. If two ranks computed a shard, the lower one finds
    it. computed_by: of each shard the highest rank that has computed it, as a vote tells; shards: those of this rank."""
    if len(computed_by) == count and all(computed_by[shard] == rank for shard in shards):
        return
    missing = [shard for shard in range(count) if shard not in computed_by]
    shard, how = (missing[0], "not at all") if missing else (_twice(rank, shards, computed_by), "twice")
    raise Inconsistent(
        f"step {step}: shard {shard} was computed {how}",
        "this is a fault of orchestrator",
        code="replica.shard-computed",
    )


def _twice(rank: int, shards: Sequence[int], computed_by: Mapping[int, int]) -> int:
    return next(shard for shard in shards if computed_by[shard] != rank)
