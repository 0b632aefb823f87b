"""No partition: an epoch's order of all samples is dealt to the shards step by step (`data/order.py`)."""

from __future__ import annotations

from orchestrator.data.sampling.population import Population


def shared(population: Population) -> None:
    """Nobody owns a sample."""
