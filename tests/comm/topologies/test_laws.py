"""The laws of `orchestrator.comm.topologies.laws`: the table keeps to them, and what breaks one is told so with its name."""

from __future__ import annotations

import re

import pytest

from orchestrator.comm.topologies import Move, Schedule, listed
from orchestrator.comm.topologies.laws import broken
from orchestrator.comm.topologies.listed import Listed
from tests.comm.topologies.cases import NAMES, variants


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
def test_every_topology_keeps_to_all(name: str, workers: int) -> None:
    assert [broken(schedule) for schedule in variants(name, workers)] == [None] * len(list(variants(name, workers)))


class OneSided(Listed):
    """The receiver of a move knows nothing of it."""

    def moves(self, rank: int) -> list[tuple[int, Move]]:  # type: ignore[override]
        return [(number, move) for number, move in super().moves(rank) if move.source == rank]


ADD, COPY = Move(1, 0, 0, "add"), Move(0, 1, 0, "copy")


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        (Schedule("", 2, 0, (0,), OneSided(((ADD,), (COPY,)))), "is no consensus: members 0 and 1 tell differently"),
        (
            listed("", 2, 0, (0,), ((ADD,),)),
            "is not exact: member 1 ends with worker 0's contribution to chunk 0 0 times",
        ),
        (listed("", 2, 0, (0,), ((ADD,), (ADD,), (COPY,))), "is not exact: member 0 ends with worker 1's .* 2 times"),
        (listed("", 2, 0, (0,), ((COPY,), (ADD,))), "is not exact: round 0: member 0 has no result of chunk 0"),
        (
            listed("", 2, 1, (2,), ((Move(0, 2, 0, "add"), Move(1, 2, 0, "add")),)),
            "is not exact: member 0 ends with worker 0's",
        ),
    ],
)
def test_what_is_broken_is_named(schedule: Schedule, problem: str) -> None:
    found = broken(schedule)
    assert found is not None
    assert re.match(problem, found), found
