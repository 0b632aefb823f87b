"""An evolutionary search by Optuna, NSGA-II with one objective: good trials are crossed and mutated, generation by generation.

Source: Deb et al., "A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II", IEEE Transactions on Evolutionary
Computation 6(2), 2002.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from orchestrator.experiments.search import optuna_study
from orchestrator.experiments.search.asking import Ask
from orchestrator.experiments.search.space import Point


def nsga2(
    ask: Ask,
    *,
    population: Annotated[int, Field(ge=2, description="Trials of a generation.")] = 16,
    crossover: Annotated[float, Field(ge=0, le=1, description="How likely two parents are crossed.")] = 0.9,
) -> list[Point]:
    from optuna.samplers import NSGAIISampler

    def make(seed: int) -> NSGAIISampler:
        return NSGAIISampler(population_size=population, crossover_prob=crossover, seed=seed)

    return optuna_study.replayed(ask, make)
