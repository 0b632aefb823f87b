"""Every client gets the same share of every label, at random within the label; shares and sizes differ by at most one."""

from __future__ import annotations

from orchestrator.data.sampling.partitions.options import By, Clients
from orchestrator.data.sampling.population import Population, Whole


def stratified(population: Population, *, clients: Clients = None, by: By = "label") -> Whole:
    import numpy

    number, labels = population.among(clients), population.labels(by)
    shuffled = population.stream().permutation(population.samples)
    order = shuffled[numpy.argsort(labels[shuffled], kind="stable")]  # label by label
    owners = numpy.empty(population.samples, numpy.int64)
    owners[order] = numpy.arange(population.samples) % number
    return owners
