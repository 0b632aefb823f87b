"""Peer to peer: every pair talks; each worker adds up one chunk for all and sends the result back.

A reduce-scatter and an all-gather in one round each: the bytes of a ring with the latency of a single exchange, for
W (W - 1) / 2 connections.

Source: the direct (all-to-all) algorithm in Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
Operations in MPICH" (2005).

What it does not do: gossip. The sum is complete in every step.
"""

from __future__ import annotations

from orchestrator.topologies.schedule import Move, Schedule, require_positive


def peer_to_peer(workers: int) -> Schedule:
    """One chunk per worker; worker w owns chunk w."""
    require_positive(workers=workers)
    # By distance, so that at each turn every worker sends one message and gets one.
    pairs = [(worker, (worker + turn) % workers) for turn in range(1, workers) for worker in range(workers)]
    scatter = tuple(Move(worker, owner, owner, "add") for worker, owner in pairs)
    gather = tuple(Move(worker, peer, worker, "copy") for worker, peer in pairs)
    rounds = (scatter, gather) if pairs else ()
    return Schedule("peer_to_peer", workers, 0, tuple(range(workers)), rounds)
