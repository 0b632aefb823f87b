"""Every topology of the table, with its options varied, so that a new one is under all laws at once.

Not here: schedules that are wrong on purpose; they stand in the tests that want them refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, Literal, get_args, get_origin

from hypothesis import strategies as st

from orchestrator.comm.topologies import TOPOLOGIES, Schedule, asks_for_nodes, build_schedule

NAMES = sorted(TOPOLOGIES)
NODES = (1, 2, 3, 9)


@dataclass(frozen=True)
class Case:
    """A schedule and the chunks that are not empty."""

    schedule: Schedule
    only: Collection[int]


def variants(name: str, workers: int, numbers: Collection[int] = (1, 2, 3, 5)) -> Iterator[Schedule]:
    """The topology with each of `numbers` for each of its options, or each of its choices; once, if it has none. One that asks
    for nodes: with workers on so many, the last with fewer, and with one on each."""
    options = TOPOLOGIES.options(name)
    for values in product(*(choices(option.kind) or numbers for option in options.values())):
        for nodes in sorted({on_nodes(workers, number) for number in NODES}) if asks_for_nodes(name) else [()]:
            yield build_schedule(name, workers, nodes=nodes, **dict(zip(options, values, strict=True)))


def on_nodes(workers: int, nodes: int) -> tuple[int, ...]:
    """Nodes by rank, where all have the same number of workers but the last, which may have fewer."""
    return tuple(rank // -(-workers // nodes) for rank in range(workers)) if workers else ()


def choices(kind: Any) -> tuple[str, ...]:
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return get_args(kind) if get_origin(kind) is Literal else ()


@st.composite
def cases(draw: st.DrawFn, max_workers: int = 9) -> Case:
    name = draw(st.sampled_from(NAMES))
    options: dict[str, Any] = {
        option.name: draw(st.sampled_from(choices(option.kind)) if choices(option.kind) else st.integers(1, 6))
        for option in TOPOLOGIES.options(name).values()
    }
    workers = draw(st.integers(1, max_workers))
    nodes = draw(st.lists(st.integers(0, 3), min_size=workers, max_size=workers)) if asks_for_nodes(name) else ()
    drawn = build_schedule(name, workers, nodes=nodes, **options)
    return Case(drawn, draw(st.frozensets(st.integers(0, drawn.chunks - 1), min_size=1)))
