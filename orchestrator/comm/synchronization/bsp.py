"""Bulk-synchronous: all replicas go from one equal state to the next together. The result does not depend on timing.

Source: Valiant, "A bridging model for parallel computation" (1990).
"""

from __future__ import annotations

from orchestrator.comm.synchronization.mode import Mode, bounded


def bsp() -> Mode:
    return Mode("lockstep", bounded(0), staleness=0)
