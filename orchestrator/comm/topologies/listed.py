"""Schedules written down round by round, which is simplest: a user's own, and in tests wrong ones and odd ones.

It does not scale to very many members: for each it reads all moves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.comm.topologies.schedule import Move, Schedule

Rounds = tuple[tuple[Move, ...], ...]


@dataclass(frozen=True)
class Listed:
    """Implements `schedule.Pattern`."""

    rounds: Rounds

    def peers(self, rank: int) -> Collection[int]:
        return {end for _, move in self.moves(rank) for end in (move.source, move.target)} - {rank}

    def moves(self, rank: int) -> Iterator[tuple[int, Move]]:
        for number, moves in enumerate(self.rounds):
            yield from ((number, move) for move in moves if rank in (move.source, move.target))


def listed(topology: str, workers: int, servers: int, owners: Sequence[int], rounds: Rounds) -> Schedule:
    """The schedule of these rounds. Raises ValueError for a move that it would refuse when it is asked for."""
    schedule = Schedule(topology, workers, servers, owners, Listed(rounds))
    for rank in range(schedule.members):
        list(schedule.moves_of(rank))
    return schedule
