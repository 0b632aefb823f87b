"""The searches: which points of a space are tried.

A search is a function `name(ask: Ask, *, option, ...) -> points`; adding one is a function here and a line in `SEARCHES`.
"""

from __future__ import annotations

import itertools
from typing import Annotated

from pydantic import Field

from orchestrator.common.registry import Table
from orchestrator.experiments.search import optuna_study
from orchestrator.experiments.search.asking import Ask, Searcher
from orchestrator.experiments.search.space import Point, Space


def grid(ask: Ask) -> list[Point]:
    """Every point of a space that has finitely many, the last key changing first."""
    return list(itertools.islice(points(ask.space), ask.first, ask.first + ask.count))


def points(space: Space) -> itertools.starmap[Point]:
    """All of a grid. A range without steps has no part in it (`endless`)."""
    values = [dimension.values() or [] for dimension in space.values()]
    return itertools.starmap(lambda *point: dict(zip(space, point, strict=True)), itertools.product(*values))


def size(space: Space) -> int:
    """The number of points of a grid."""
    count = 1
    for dimension in space.values():
        count *= dimension.count or 0
    return count


def endless(space: Space) -> list[str]:
    """The keys whose values have no end."""
    return [key for key, dimension in space.items() if dimension.count is None]


def uniform(ask: Ask) -> list[Point]:
    """Points drawn independently of each other, each value evenly over its range: a trial's point is a function of the sweep's
    seed and the trial's number alone."""
    return [
        {key: dimension.at(ask.share(number, key)) for key, dimension in ask.space.items()}
        for number in range(ask.first, ask.first + ask.count)
    ]


def tpe(
    ask: Ask,
    *,
    startup: Annotated[int, Field(ge=0, description="Trials that are drawn at random before.")] = 10,
    candidates: Annotated[int, Field(ge=1, description="Points of which the most promising one is taken.")] = 24,
    multivariate: Annotated[bool, Field(description="Whether keys are modelled together.")] = True,
    constant_liar: Annotated[bool, Field(description="Whether trials of the same batch keep others away.")] = True,
) -> list[Point]:
    """The tree-structured Parzen estimator of Optuna: points that are likely among good trials and unlikely among bad ones.

    Source: Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011; Watanabe, "Tree-Structured Parzen
    Estimator", 2023. Whether keys are modelled together and whether running trials count as bad ones have other defaults in
    other versions of Optuna, so both are options here, with defaults of their own.
    """
    from optuna.samplers import TPESampler

    def make(seed: int) -> TPESampler:
        return TPESampler(
            n_startup_trials=startup,
            n_ei_candidates=candidates,
            multivariate=multivariate,
            constant_liar=constant_liar,
            group=False,
            seed=seed,
        )

    return optuna_study.suggestions(ask, make)


def nsga2(
    ask: Ask,
    *,
    population: Annotated[int, Field(ge=2, description="Trials of a generation.")] = 16,
    crossover: Annotated[float, Field(ge=0, le=1, description="How likely two parents are crossed.")] = 0.9,
) -> list[Point]:
    """An evolutionary search by Optuna, NSGA-II with one objective: good trials are crossed and mutated, generation by
    generation.

    Source: Deb et al., "A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II", IEEE Transactions on Evolutionary
    Computation 6(2), 2002.
    """
    from optuna.samplers import NSGAIISampler

    def make(seed: int) -> NSGAIISampler:
        return NSGAIISampler(population_size=population, crossover_prob=crossover, seed=seed)

    return optuna_study.replayed(ask, make)


SEARCHES: Table[Searcher] = Table("search", {"grid": grid, "random": uniform, "tpe": tpe, "nsga2": nsga2})
