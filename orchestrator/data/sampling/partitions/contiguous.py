"""In the order of the data set, cut into runs whose lengths differ by at most one: where files are sorted by their origin."""

from __future__ import annotations

from orchestrator.data.sampling.partitions.options import Clients
from orchestrator.data.sampling.population import Population, Whole


def contiguous(population: Population, *, clients: Clients = None) -> Whole:
    import numpy

    return population.dealt(numpy.arange(population.samples), population.among(clients))
