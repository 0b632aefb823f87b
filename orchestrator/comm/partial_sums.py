"""Where a member keeps the sums of chunks that are not complete yet, by the schedule alone. Pure."""

from __future__ import annotations

from orchestrator.comm.topologies.schedule import Action, Add, Finish, Schedule, program
from orchestrator.numerics.layout import Layout


def partial_places(layout: Layout, schedule: Schedule, rank: int) -> dict[int, slice]:
    """Where in `partial` this member keeps its sum of each chunk that it has to keep one of."""
    borders = layout.borders(schedule.chunks)
    actions = program(schedule, rank, only=filled(borders))
    places: dict[int, slice] = {}
    end = 0
    for action, following in zip(actions, [*actions[1:], None], strict=False):
        if isinstance(action, Add) and not completes(action, following) and action.chunk not in places:
            start, end = end, end + borders[action.chunk + 1] - borders[action.chunk]
            places[action.chunk] = slice(start, end)
    return places


def completes(action: Add, following: Action | None) -> bool:
    """Whether this is the last addition to a chunk that is finished at once, so that both are done in one pass."""
    finishes = isinstance(following, Finish) and (following.chunk, following.base) == (action.chunk, "partial")
    return finishes and action.base != "nothing"


def filled(borders: tuple[int, ...]) -> frozenset[int]:
    """The chunks that are not empty; a small model leaves some empty."""
    return frozenset(chunk for chunk in range(len(borders) - 1) if borders[chunk] < borders[chunk + 1])
