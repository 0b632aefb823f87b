"""Of every label, the clients' shares are drawn from a Dirichlet distribution: the smaller alpha, the fewer share a label.

The whole is drawn again until every client has `least` samples. Source: Hsu, Qi and Brown, "Measuring the Effects of
Non-Identical Data Distribution for Federated Visual Classification" (2019), by label as in Li et al., "Federated Learning on
Non-IID Data Silos" (2022).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from orchestrator.data.sampling.partitions.options import By, Clients
from orchestrator.data.sampling.population import Population, Whole
from orchestrator.errors import ConfigurationError

_DRAWS = 1000


def dirichlet(
    population: Population,
    *,
    clients: Clients = None,
    alpha: Annotated[
        float, Field(gt=0, description="Concentration: 100 is nearly even, 0.1 leaves few clients to a label.")
    ] = 0.5,
    by: By = "label",
    least: Annotated[int, Field(ge=0, description="Samples that every client owns at least.")] = 1,
) -> Whole:
    import numpy

    number, labels, stream = population.among(clients), population.labels(by), population.stream()
    members = [numpy.flatnonzero(labels == label) for label in range(int(labels.max()) + 1)]
    for _ in range(_DRAWS):
        owners = _drawn(members, number, alpha, stream)
        if owners is not None and numpy.bincount(owners, minlength=number).min() >= least:
            return owners
    raise ConfigurationError(
        [
            f"data.partition.alpha: with {alpha:g} none of {_DRAWS} partitions of {population.samples} samples among {number} "
            f"clients leaves each of them {least}: raise alpha, or lower the number of clients or data.partition.least"
        ]
    )


def _drawn(members: list[Whole], clients: int, alpha: float, stream: Any) -> Whole | None:
    """One partition; None where alpha is so small that shares come out as 0 / 0. members: the samples of each label."""
    import numpy

    owners = numpy.empty(sum(map(len, members)), numpy.int64)
    for samples in members:
        shuffled, shares = stream.permutation(samples), stream.dirichlet([alpha] * clients)
        if not numpy.isfinite(shares).all():
            return None
        cuts = (numpy.cumsum(shares)[:-1] * len(samples)).astype(numpy.int64)
        for client, part in enumerate(numpy.split(shuffled, cuts)):
            owners[part] = client
    return owners
