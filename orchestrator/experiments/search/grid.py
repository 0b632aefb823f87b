"""Every point of a space that has finitely many, the last key changing first."""

from __future__ import annotations

import itertools

from orchestrator.experiments.search.asking import Ask
from orchestrator.experiments.search.space import Point, Space


def grid(ask: Ask) -> list[Point]:
    return list(itertools.islice(points(ask.space), ask.first, ask.first + ask.count))


def points(space: Space) -> itertools.starmap[Point]:
    """All of them. A range without steps has no part in it (`endless`)."""
    values = [dimension.values() or [] for dimension in space.values()]
    return itertools.starmap(lambda *point: dict(zip(space, point, strict=True)), itertools.product(*values))


def size(space: Space) -> int:
    count = 1
    for dimension in space.values():
        count *= len(dimension.values() or [])
    return count


def endless(space: Space) -> list[str]:
    """The keys whose values have no end."""
    return [key for key, dimension in space.items() if dimension.values() is None]
