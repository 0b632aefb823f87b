"""The samples that each shard owns and draws from, and their weights. A pure function of settings, seed and labels.

Every worker computes all of it, and its digest is among the facts that workers have to agree on (rule B4).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy

from orchestrator.common.import_string import raised
from orchestrator.common.registry import Variant
from orchestrator.data.labels import Labels
from orchestrator.data.plan import Data
from orchestrator.data.sampling.orders import COMPUTED
from orchestrator.data.sampling.partitions import PARTITIONS
from orchestrator.data.sampling.population import Population, Real, Whole
from orchestrator.data.sampling.samplings import SAMPLINGS, misfit
from orchestrator.errors import ConfigurationError, OrchestratorError

_MOST_LABELS, _MOST_CLIENTS = 20, 1000


@dataclass(frozen=True)
class SampleSubset:
    """The samples from which one shard draws. samples: numbers of those that a shard draws from, in the order of the data set;
    weights: of each, None: without."""

    samples: Whole
    weights: Real | None


@dataclass(frozen=True)
class Division:
    """The division of the training samples among clients."""

    parts: tuple[SampleSubset, ...]  # by client; with as many clients as shards, each shard is one
    owners: Whole | None  # by sample, its client; None where samples are not divided
    by: str  # the name of the labels by which samples are divided

    @property
    def digest(self) -> str:
        """SHA-256 over owners and weights."""
        digest = hashlib.sha256(b"" if self.owners is None else self.owners.astype("<i8").tobytes())
        for part in {id(part): part for part in self.parts}.values():
            digest.update(b"" if part.weights is None else part.weights.astype("<f8").tobytes())
        return digest.hexdigest()

    def table(self, labels: Labels) -> dict[str, Any] | None:
        """How many samples of each label a client owns, for a picture, as plain data: `labels`, `counts` (by client, then by
        label). The rarer ones of many labels are counted together; None where samples are not divided, or among very many."""
        if self.owners is None or len(self.parts) > _MOST_CLIENTS:
            return None
        try:
            numbers, names = labels.of(self.by)
        except ConfigurationError:  # a partition that needs no labels
            numbers, names = numpy.zeros(len(self.owners), numpy.int64), ["samples"]
        counts = numpy.zeros((len(self.parts), len(names)), numpy.int64)
        numpy.add.at(counts, (self.owners, numbers), 1)
        if len(names) > _MOST_LABELS:
            common = numpy.sort(numpy.argsort(-counts.sum(0), kind="stable")[: _MOST_LABELS - 1])
            others = counts.sum(1) - counts[:, common].sum(1)
            counts = numpy.column_stack([counts[:, common], others])
            names = [*(names[label] for label in common), "others"]
        return {"labels": names, "counts": counts.tolist()}


def divide(labels: Labels, data: Data) -> Division | None:
    """None where every shard draws from all samples without weights. Raises ConfigurationError, PipelineRaised."""
    if data.partition is None and data.sampling is None:
        return None
    try:
        return _divided(labels, data)
    except MemoryError as error:
        raise ConfigurationError(
            [f"data: a partition or a sampling holds numbers for each training sample, and memory is short: {error}"],
            f"leave data.partition and data.sampling out, and {COMPUTED}",
            code="data.division-memory",
        ) from error


def _divided(labels: Labels, data: Data) -> Division:
    population = labels.population(data.shards)
    owners, by = (None, "label") if data.partition is None else _owners(data.partition, population)
    if owners is None:
        whole = _part(data.sampling, population, numpy.arange(population.samples))
        return Division((whole,) * data.shards, None, by)
    owned = (numpy.flatnonzero(owners == client) for client in range(_clients(data, owners)))
    parts = tuple(_part(data.sampling, population, part) for part in owned)
    if len({part.weights is None for part in parts if len(part.samples)}) > 1:
        raise ConfigurationError(
            ["data.sampling: gives weights for some clients and None for others; give all the same"],
            code="data.sampling-some-weights",
        )
    return Division(parts, owners, by)


def _owners(partition: Variant, population: Population) -> tuple[Whole | None, str]:
    name = partition.name
    options = PARTITIONS.resolve(name, partition.options)
    found = _called("data.partition", name, lambda: PARTITIONS.build(name, options)(population))
    # For `natural`, whose label is the client, the picture shows the usual labels.
    return found, str(options.get("by", "label")) if "clients" in options else "label"


def _clients(data: Data, owners: Whole) -> int:
    """At least as many as there are shards: the last ones may own nothing."""
    given = None if data.partition is None else data.partition.options.get("clients")
    return max(data.shards, given if isinstance(given, int) else 0, int(owners.max(initial=-1)) + 1)


def _part(sampling: Variant | None, population: Population, samples: Whole) -> SampleSubset:
    """Without the samples that are never drawn."""
    if sampling is None or not len(samples):
        return SampleSubset(samples, None)
    name = sampling.name
    build = SAMPLINGS.build(name, sampling.options)
    weights = _called("data.sampling", name, lambda: build(population, samples))
    if weights is None:
        return SampleSubset(samples, None)
    problem = misfit(weights, len(samples))
    if problem is not None:
        raise ConfigurationError([f"data.sampling: {name} gives {problem}"], code="data.sampling-gives")
    drawn = weights > 0
    return SampleSubset(samples[drawn], weights[drawn])


def _called(key: str, name: str, call: Any) -> Any:
    """Raises ConfigurationError for an exception of a variant of the user's own, too."""
    try:
        return call()
    except (OrchestratorError, MemoryError):
        raise
    except Exception as error:
        raise ConfigurationError([f"{key}: {name} {raised(error)}"], code="data.division-raised") from error
