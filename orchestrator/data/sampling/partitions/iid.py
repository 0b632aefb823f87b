"""At random, so that every client's part is a sample of the whole; sizes differ by at most one."""

from __future__ import annotations

from orchestrator.data.sampling.partitions.options import Clients
from orchestrator.data.sampling.population import Population, Whole


def iid(population: Population, *, clients: Clients = None) -> Whole:
    number = population.among(clients)
    return population.dealt(population.stream().permutation(population.samples), number)
