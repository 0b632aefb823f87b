"""Partitions: which client owns which training sample. A shard is a client, or plays one that is drawn for each step where
there are more (`data/clients.py`), and draws its micro-batches from what the client owns.

A partition is a function `name(population: Population, *, option, ...)` that returns an owner per sample, int64 of shape
(samples,), from 0 on: a disjoint cover by its form. It depends on the population alone: seed, labels, numbers; never on workers
or time. Adding one is a function here and a line in `PARTITIONS`. A user's own is held to the laws at launch
(`partition_laws.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from orchestrator.common.registry import Table
from orchestrator.data.sampling.population import Population, Whole
from orchestrator.errors import ConfigurationError

# Options that several partitions have.
Clients = Annotated[
    int | None, Field(ge=1, description="Among how many the samples are divided; null: as many as there are shards.")
]
By = Annotated[str, Field(min_length=1, description="The name that `labels` of the pipeline is asked for.")]

_DRAWS = 1000


def shared(population: Population) -> None:
    """No client owns samples: each step deals the next samples of the epoch's order to the shards.

    `data/order.py` does that.
    """


def iid(population: Population, *, clients: Clients = None) -> Whole:
    """Samples are divided at random; sizes differ by at most one."""
    number = population.among(clients)
    return population.cut_evenly(population.stream().permutation(population.samples), number)


def contiguous(population: Population, *, clients: Clients = None) -> Whole:
    """The data set is cut in its order, into runs whose lengths differ by at most one: for files sorted by their origin."""
    import numpy

    return population.cut_evenly(numpy.arange(population.samples), population.among(clients))


def stratified(population: Population, *, clients: Clients = None, by: By = "label") -> Whole:
    """Every client gets the same share of every label, at random within the label; shares and sizes differ by at most one."""
    import numpy

    number, labels = population.among(clients), population.labels(by)
    shuffled = population.stream().permutation(population.samples)
    order = shuffled[numpy.argsort(labels[shuffled], kind="stable")]  # label by label
    owners = numpy.empty(population.samples, numpy.int64)
    owners[order] = numpy.arange(population.samples) % number
    return owners


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
    """Each label is divided by shares from a Dirichlet distribution: the smaller `alpha`, the fewer clients have a label.

    The whole is drawn again until every client has `least` samples. Source: Hsu, Qi and Brown, "Measuring the Effects of
    Non-Identical Data Distribution for Federated Visual Classification" (2019), by label as in Li et al., "Federated Learning
    on Non-IID Data Silos" (2022).
    """
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
        ],
        code="data.dirichlet",
    )


def pathological(
    population: Population,
    *,
    clients: Clients = None,
    runs: Annotated[int, Field(ge=1, description="Runs of samples, sorted by label, that a client gets.")] = 2,
    by: By = "label",
) -> Whole:
    """Samples sorted by label are cut into equal runs, and each client gets a few of them: it knows few labels.

    Which runs it gets is random.

    Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (2017), section 3.
    """
    import numpy

    number = population.among(clients)
    if number * runs > population.samples:
        raise ConfigurationError(
            [
                f"data.partition.runs: {runs} runs for each of {number} clients, but {population.samples} samples: lower it"
            ],
            code="data.pathological",
        )
    order = numpy.argsort(population.labels(by), kind="stable")
    drawn = population.stream().permutation(number * runs)
    owners: Whole = drawn[population.cut_evenly(order, number * runs)] // runs
    return owners


def natural(population: Population, *, by: By = "client") -> Whole:
    """Samples with the same value of a label, such as their writer, are one client's.

    Clients are numbered in the order of their sorted values.
    """
    owners = population.labels(by)
    clients = int(owners.max()) + 1
    if clients < population.shards:
        raise ConfigurationError(
            [f"data.partition: natural finds {clients} clients by {by!r}, and there are {population.shards} shards"],
            f"in each step a shard plays a client of its own: set data.shards={clients}, or fewer",
            code="data.natural-clients",
        )
    return owners


PARTITIONS: Table[Callable[..., Whole | None]] = Table(
    "data.partition",
    {
        "shared": shared,
        "iid": iid,
        "contiguous": contiguous,
        "stratified": stratified,
        "dirichlet": dirichlet,
        "pathological": pathological,
        "natural": natural,
    },
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
