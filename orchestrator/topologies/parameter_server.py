"""Parameter server: servers each own one chunk; all workers push theirs and pull the result.

Servers are members of their own that host no shards. They hold sums, not parameters: the optimizer stays with the
workers. Two rounds whatever the number of workers; a server's link carries all workers' pushes, hence several servers.

Source: Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (2014).

What it does not do: let a fast worker go on before the others; that is the sync mode.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from orchestrator.topologies.schedule import Move, Schedule, require_positive


def parameter_server(
    workers: int, *, servers: Annotated[int, Field(ge=1, description="How many parameter servers hold slices.")] = 1
) -> Schedule:
    """One chunk per server; server s has rank workers + s and owns chunk s."""
    require_positive(workers=workers, servers=servers)
    # Worker w begins with server w and goes around, so that they do not all queue at the first one.
    pairs = [(worker, (worker + turn) % servers) for turn in range(servers) for worker in range(workers)]
    push = tuple(Move(worker, workers + server, server, "add") for worker, server in pairs)
    pull = tuple(Move(workers + server, worker, server, "copy") for worker, server in pairs)
    return Schedule("parameter_server", workers, servers, tuple(range(workers, workers + servers)), (push, pull))
