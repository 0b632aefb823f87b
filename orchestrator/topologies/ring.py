"""Ring: each worker talks to its two neighbours only; reduce-scatter, then all-gather, 2 (W - 1) rounds.

Every member sends and receives 2 (W - 1) / W of the vector, and no all-reduce can do with less. The price is latency: a
result has gone through all members.

Source: Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009).

What it does not do: pipeline within a chunk, or choose the order of the workers around the ring; that is their rank.
"""

from __future__ import annotations

from orchestrator.topologies.schedule import Move, Schedule, require_positive


def ring(workers: int) -> Schedule:
    """One chunk per worker; worker w owns chunk w."""
    require_positive(workers=workers)
    # Chunk c starts at worker c + 1 and goes once around, so that it is complete when it comes to worker c.
    reduce_scatter = tuple(
        tuple(Move(w, (w + 1) % workers, (w - 1 - j) % workers, "add") for w in range(workers))
        for j in range(workers - 1)
    )
    all_gather = tuple(
        tuple(Move(w, (w + 1) % workers, (w - j) % workers, "copy") for w in range(workers)) for j in range(workers - 1)
    )
    return Schedule("ring", workers, 0, tuple(range(workers)), reduce_scatter + all_gather)
