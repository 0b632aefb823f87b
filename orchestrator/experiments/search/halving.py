"""Pruning by successive halving, one rung after the other: pure.

A batch is trained for the steps of the first rung; the best part of it goes on to the next one, and so on to the last. All
trials of a rung are compared at once, when all are done, so that no decision depends on which of them was faster.
Source: Jamieson & Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016, algorithm
1; with a batch as its bracket.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.experiments.search.asking import rank


@dataclass(frozen=True)
class Rung:
    """A cut. steps: for which its trials have been trained; factor: one in so many goes on; direction: of the objective."""

    steps: int
    factor: int
    direction: str = "minimize"


def prune(rung: Rung, values: Mapping[int, float | None]) -> list[int]:
    """The numbers of the trials that go on, in order: the best of each `factor`, rounded up. values: by trial, None where it
    failed, which never goes on; of equal values those of the first trials count as better."""
    alive = [number for number, value in values.items() if value is not None]
    kept = math.ceil(len(values) / rung.factor)
    return sorted(sorted(alive, key=lambda number: (rank(values[number], rung.direction), number))[:kept])
