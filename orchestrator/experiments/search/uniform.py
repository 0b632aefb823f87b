"""Points drawn independently of each other, each value evenly over its range: a trial's point is a function of the sweep's seed
and the trial's number alone."""

from __future__ import annotations

from orchestrator.experiments.search.asking import Ask
from orchestrator.experiments.search.space import Point


def uniform(ask: Ask) -> list[Point]:
    return [
        {key: dimension.at(ask.share(number, key)) for key, dimension in ask.space.items()}
        for number in range(ask.first, ask.first + ask.count)
    ]
