"""Ring: each worker talks to its two neighbours only; reduce-scatter, then all-gather, 2 (W - 1) rounds.

Every member sends and receives 2 (W - 1) / W of the vector, and no all-reduce can do with less. The price is latency: a
result has gone through all members.

Source: Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009).

There is no pipelining within a chunk. The workers stand around the ring in the order of their ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from orchestrator.comm.topologies.schedule import Kind, Move, Schedule, require_positive


def ring(workers: int) -> Schedule:
    """Each worker talks to its two neighbours only: the fewest bytes per worker, in 2 (W - 1) rounds for W workers.

    One chunk per worker; worker w owns chunk w.
    """
    require_positive(workers=workers)
    return Schedule("ring", workers, 0, range(workers), _Ring(workers))


@dataclass(frozen=True)
class _Ring:
    """Implements `schedule.Pattern`."""

    workers: int

    def peers(self, rank: int) -> Collection[int]:
        return {(rank - 1) % self.workers, (rank + 1) % self.workers} - {rank}

    def moves(self, rank: int) -> Iterator[tuple[int, Move]]:
        for number in range(2 * (self.workers - 1)):
            yield number, self._sent(number, rank)
            yield number, self._sent(number, (rank - 1) % self.workers)

    def _sent(self, number: int, source: int) -> Move:
        """Chunk c starts at worker c + 1 and goes once around, so that it is complete when it reaches worker c; from there
        its result goes around."""
        kind: Kind = "add" if number < self.workers - 1 else "copy"
        return Move(source, (source + 1) % self.workers, (source - 1 - number) % self.workers, kind)
