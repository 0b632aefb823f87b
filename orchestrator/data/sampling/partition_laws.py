"""The laws of every partition: the tests hold those of the table to them, and a launch a user's own.

    disjoint cover    it names one owner for each sample: whole numbers from 0 on, of shape (samples,)
    pure              it depends on the population alone: asked again, whatever others have drawn, it is the same
    reads only        the labels that it was given stay as they are

They do not look at the user's labels. A user's own is tried on a small population with three labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.data.sampling.partitions import PARTITIONS
from orchestrator.data.sampling.population import Population, Whole, tried


def problems(name: str, options: Mapping[str, Any], shards: int) -> list[str]:
    """The fault of a partition of the user's project; at most one sentence."""
    return PARTITIONS.judge(name, lambda: broken(PARTITIONS.build(name, options), tried(shards)))


def broken(partition: Callable[[Population], Any], population: Population) -> str | None:
    """The law that it breaks, as a predicate; None where it keeps to all."""
    import numpy

    handed_out: list[tuple[Whole, Whole]] = []

    def labels(by: str) -> Whole:
        found = population.labels(by)
        handed_out.append((found, found.copy()))
        return found

    watched = Population(population.samples, population.shards, population.seed, labels, population.weights)
    owners = partition(watched)
    if not isinstance(owners, numpy.ndarray) or owners.dtype.kind not in "iu":
        return f"gives {type(owners).__name__}; expected a numpy array of whole numbers, the owner of each sample"
    if owners.shape != (population.samples,):
        return f"gives owners of shape {owners.shape} for {population.samples} samples"
    if owners.size and owners.min() < 0:
        return f"gives the owner {owners.min()}; clients are numbered from 0 on"
    if any(not numpy.array_equal(found, before) for found, before in handed_out):
        return "changes the labels that it was given: copy them first"
    first_owners = owners.copy()
    state = numpy.random.get_state()
    try:
        numpy.random.seed(population.seed ^ 1)
        again = partition(watched)
    finally:
        numpy.random.set_state(state)
    if not numpy.array_equal(again, first_owners):
        return "is not pure: asked again it gave other owners; draw from population.stream() alone"
    return None
