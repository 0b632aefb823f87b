"""As the data came: samples with the same value of a label, such as their writer, are one client's."""

from __future__ import annotations

from orchestrator.data.sampling.partitions.options import By
from orchestrator.data.sampling.population import Population, Whole
from orchestrator.errors import ConfigurationError


def natural(population: Population, *, by: By = "client") -> Whole:
    """Clients are numbered in the order of their sorted values."""
    owners = population.labels(by)
    clients = int(owners.max()) + 1
    if clients < population.shards:
        raise ConfigurationError(
            [f"data.partition: natural finds {clients} clients by {by!r}, and there are {population.shards} shards"],
            f"in each step a shard plays a client of its own: set data.shards={clients}, or fewer",
        )
    return owners
