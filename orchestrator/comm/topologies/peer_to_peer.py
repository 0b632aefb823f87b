"""Peer to peer: every pair talks; each worker adds up one chunk for all and sends the result back.

A reduce-scatter and an all-gather in one round each: the bytes of a ring with the latency of a single exchange, for
W (W - 1) / 2 connections.

Source: the direct (all-to-all) algorithm in Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
Operations in MPICH" (2005).

This is not gossip. The sum is complete in every step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from orchestrator.comm.topologies.schedule import Move, Schedule, require_positive


def peer_to_peer(workers: int) -> Schedule:
    """Every pair of workers talks: the bytes of a ring in two rounds, for W (W - 1) / 2 connections among W workers.

    One chunk per worker; worker w owns chunk w.
    """
    require_positive(workers=workers)
    return Schedule("peer_to_peer", workers, 0, range(workers), _PeerToPeer(workers))


@dataclass(frozen=True)
class _PeerToPeer:
    """Implements `schedule.Pattern`."""

    workers: int

    def peers(self, rank: int) -> Collection[int]:
        return [peer for peer in range(self.workers) if peer != rank]

    def moves(self, rank: int) -> Iterator[tuple[int, Move]]:
        for source, target in self._pairs(rank):
            yield 0, Move(source, target, target, "add")
        for source, target in self._pairs(rank):
            yield 1, Move(source, target, source, "copy")

    def _pairs(self, rank: int) -> Iterator[tuple[int, int]]:
        """By distance, so that at each turn every worker sends one message and gets one."""
        for turn in range(1, self.workers):
            yield rank, (rank + turn) % self.workers
            yield (rank - turn) % self.workers, rank
