"""The table of samplings: how likely a shard draws each sample of its part.

A sampling is a function `name(population: Population, part, *, option, ...)`: `part` holds the numbers of the samples that a
shard draws from, int64. It returns their weights, float64 of the same shape, at least 0 and not all 0: rows are then drawn with
replacement, each with a probability in proportion to its weight, from a stream of (seed, step, shard). Or None, for every part:
without weights, each sample once before any comes again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.common.registry import Table
from orchestrator.data.sampling.partitions import By
from orchestrator.data.sampling.population import Population, Real, Whole, tried


def uniform(population: Population, part: Whole) -> None:
    """Each sample comes once in a pass."""


def balanced(population: Population, part: Whole, *, by: By = "label") -> Real:
    """Each label of a shard's samples comes equally often, however many samples have it; drawn with replacement."""
    import numpy

    labels = population.labels(by)[part]
    weights: Real = 1.0 / numpy.bincount(labels)[labels]
    return weights


def weighted(population: Population, part: Whole) -> Real:
    """Samples are drawn with replacement, in proportion to `weights` of the pipeline."""
    weights: Real = population.weights()[part]
    return weights


SAMPLINGS: Table[Callable[..., Real | None]] = Table(
    "data.sampling", {"uniform": uniform, "balanced": balanced, "weighted": weighted}, given=2
)


def misfit(weights: Any, samples: int) -> str | None:
    """The fault of the weights of so many samples; None if they are fit."""
    import numpy

    if not isinstance(weights, numpy.ndarray) or weights.dtype != numpy.float64 or weights.shape != (samples,):
        shape = f" of shape {weights.shape} and type {weights.dtype}" if isinstance(weights, numpy.ndarray) else ""
        return f"a {type(weights).__name__}{shape}; expected an array of {samples} weights in float64"
    if not numpy.isfinite(weights).all() or weights.min() < 0:
        wrong = weights[~numpy.isfinite(weights) | (weights < 0)][0]
        return f"the weight {wrong}; a weight is finite and at least 0"
    if not 0 < weights.sum() < numpy.inf:
        return f"{samples} weights of the sum {weights.sum()}, by which nothing can be drawn; give each shard a sample with one"
    return None


def problems(name: str, options: Mapping[str, Any], shards: int) -> list[str]:
    """The fault of a sampling of the user's project, tried on a small population; at most one sentence."""
    import numpy

    population = tried(shards)
    part = numpy.arange(1, population.samples, 2)

    def broken() -> str | None:
        weights, again = (SAMPLINGS.build(name, options)(population, part.copy()) for _ in range(2))
        if weights is not None and (problem := misfit(weights, len(part))) is not None:
            return f"gives {problem}"
        same = weights is again if weights is None or again is None else numpy.array_equal(again, weights)
        return None if same else "is not pure: asked again it gave other weights"

    return SAMPLINGS.judge(name, broken)
