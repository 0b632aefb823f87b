"""Samples sorted by label are cut into equal runs, and every client gets a few of them at random: a client knows few labels.

Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (2017), section 3.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from orchestrator.data.sampling.partitions.options import By, Clients
from orchestrator.data.sampling.population import Population, Whole
from orchestrator.errors import ConfigurationError


def pathological(
    population: Population,
    *,
    clients: Clients = None,
    runs: Annotated[int, Field(ge=1, description="Runs of samples, sorted by label, that a client gets.")] = 2,
    by: By = "label",
) -> Whole:
    import numpy

    number = population.among(clients)
    if number * runs > population.samples:
        raise ConfigurationError(
            [
                f"data.partition.runs: {runs} runs for each of {number} clients, but {population.samples} samples: lower it"
            ]
        )
    order = numpy.argsort(population.labels(by), kind="stable")
    drawn = population.stream().permutation(number * runs)
    owners: Whole = drawn[population.dealt(order, number * runs)] // runs
    return owners
