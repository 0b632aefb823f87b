"""The tree-structured Parzen estimator of Optuna: points that are likely among good trials and unlikely among bad ones.

Source: Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011; Watanabe, "Tree-Structured Parzen
Estimator", 2023. Whether keys are modelled together and whether running trials count as bad ones have other defaults in other
versions of Optuna, so both are options here, with defaults of their own.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from orchestrator.experiments.search import optuna_study
from orchestrator.experiments.search.asking import Ask
from orchestrator.experiments.search.space import Point


def tpe(
    ask: Ask,
    *,
    startup: Annotated[int, Field(ge=0, description="Trials that are drawn at random before.")] = 10,
    candidates: Annotated[int, Field(ge=1, description="Points of which the most promising one is taken.")] = 24,
    multivariate: Annotated[bool, Field(description="Whether keys are modelled together.")] = True,
    constant_liar: Annotated[bool, Field(description="Whether trials of the same batch keep others away.")] = True,
) -> list[Point]:
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

    return optuna_study.told(ask, make)
