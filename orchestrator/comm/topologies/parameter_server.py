"""Parameter server: servers each own one chunk; all workers push theirs and pull the result.

Servers are members of their own that host no shards. They hold sums, not parameters: the optimizer stays with the
workers. Two rounds whatever the number of workers; a server's link carries all workers' pushes, hence several servers.

Source: Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (2014).

A fast worker may not go on before the others here; the sync mode decides that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from orchestrator.comm.topologies.schedule import Move, Schedule, require_positive

MOST = 1000  # processes: a digit too many would fill the machine


def parameter_server(
    workers: int,
    *,
    servers: Annotated[int, Field(ge=1, le=MOST, description="How many parameter servers hold slices.")] = 1,
) -> Schedule:
    """Servers, processes of their own, each add up one slice for all workers: two rounds, whatever the number of workers.

    One chunk per server; server s has rank workers + s and owns chunk s.
    """
    require_positive(workers=workers, servers=servers)
    owners = range(workers, workers + servers)
    return Schedule("parameter_server", workers, servers, owners, _ParameterServer(workers, servers))


@dataclass(frozen=True)
class _ParameterServer:
    """Implements `schedule.Pattern`."""

    workers: int
    servers: int

    def peers(self, rank: int) -> Collection[int]:
        return range(self.workers, self.workers + self.servers) if rank < self.workers else range(self.workers)

    def moves(self, rank: int) -> Iterator[tuple[int, Move]]:
        for worker, server in self._pairs(rank):
            yield 0, Move(worker, self.workers + server, server, "add")
        for worker, server in self._pairs(rank):
            yield 1, Move(self.workers + server, worker, server, "copy")

    def _pairs(self, rank: int) -> Iterator[tuple[int, int]]:
        """Worker w begins with server w and goes around, so that they do not all queue at the first one."""
        for turn in range(self.servers):
            if rank < self.workers:
                yield rank, (rank + turn) % self.servers
            else:
                server = rank - self.workers
                yield from (
                    (worker, server) for worker in range((server - turn) % self.servers, self.workers, self.servers)
                )
