"""Every topology of the table, with its options varied, so that a new one is under all laws at once.

Not here: schedules that are wrong on purpose; they stand in the tests that want them refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import product

from hypothesis import strategies as st

from orchestrator.topologies import TOPOLOGIES, Schedule, build_schedule

NAMES = sorted(TOPOLOGIES)


@dataclass(frozen=True)
class Case:
    """A schedule and the chunks that are not empty."""

    schedule: Schedule
    only: Collection[int]


def variants(name: str, workers: int, numbers: Collection[int] = (1, 2, 3, 5)) -> Iterator[Schedule]:
    """The topology with each of `numbers` for each of its options; once, if it has none."""
    options = TOPOLOGIES.options(name)
    for values in product(numbers, repeat=len(options)):
        yield build_schedule(name, workers, **dict(zip(options, values, strict=True)))


@st.composite
def cases(draw: st.DrawFn, max_workers: int = 9) -> Case:
    name = draw(st.sampled_from(NAMES))
    options = {option: draw(st.integers(1, 6)) for option in TOPOLOGIES.options(name)}
    drawn = build_schedule(name, draw(st.integers(1, max_workers)), **options)
    return Case(drawn, draw(st.frozensets(st.integers(0, drawn.chunks - 1), min_size=1)))
