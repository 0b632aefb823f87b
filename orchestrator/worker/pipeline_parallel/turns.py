"""Turns in which workers of a host have a whole model in memory, before each keeps one stage of it.

Were all to prepare at once, a host would need memory for as many whole models as it has workers. So a worker that is about to
make a whole model takes one of the host's turns. There are as many as whole models fit into the memory that is free, and always
one: a run that has memory for no whole model ends by saying so. A turn falls with its process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from orchestrator.comm.transports.available_memory import available_bytes
from orchestrator.config.plan import Plan
from orchestrator.worker.member.generation import ProcessServices

_LEFT: Final = 4  # one part in so many of the free memory, for activations, batches and whoever else is there
_LOOK_S: Final = 0.1  # between two looks for a turn
_AT_IT: Final = -1  # the turn of the worker that is doing the work of its host
_DONE: Final = -2  # the turn of the worker that has done it


def at_once(available: int, needed: int | None, workers: int) -> int:
    """How many of so many workers may have a whole model at the same time. available: free bytes of the host; needed: by one of
    them; None: nobody knows."""
    return 1 if needed is None else max(1, min(workers, _usable(available) // max(1, needed)))


def may_keep(available: int, needed: int | None, others: int) -> bool:
    """Whether a worker that is done with a whole model may keep it until it has a stage: all others can prepare beside it."""
    return needed is not None and _usable(available) >= needed * others


@contextmanager
def turn(plan: Plan, services: ProcessServices) -> Iterator[None]:
    """Within the block this worker may hold the whole model of a run in stages. Behind the block others may use the memory of
    what it still holds. Raises CalledOff."""
    needed, workers, take = plan.cluster.preparing_bytes, _preparing(plan), services.take_turn
    if plan.cluster.members.stages == 1 or take is None:
        yield
        return
    while True:
        found = (take(number) for number in range(at_once(available_bytes(), needed, workers)))
        if (give_back := next(filter(None, found), None)) is not None:
            break
        _wait(services)
    try:
        yield
    finally:
        give_back()


@contextmanager
def once(services: ProcessServices, meanwhile: Callable[[], object]) -> Iterator[bool]:
    """Work that one worker of a host does for all. Yields True to the worker that has to do it in the block, and False once
    another one that lives has done it. If that one dies at the work, the next worker does it. meanwhile: called once by a
    worker that waits. Raises CalledOff."""
    if services.take_turn is None:
        yield True
        return
    give_back = services.take_turn(_AT_IT)
    if give_back is None:
        meanwhile()
    while give_back is None and (give_back := services.take_turn(_AT_IT)) is None:
        _wait(services)
    try:
        undo = services.take_turn(_DONE)  # kept as long as this process lives
        try:
            yield undo is not None
        except BaseException:
            if undo is not None:
                undo()
            raise
    finally:
        give_back()


def is_to_let_go(plan: Plan, services: ProcessServices) -> bool:
    """Whether a worker that has prepared is to let go of the whole model at once, and to make it anew when it has a stage."""
    if plan.cluster.members.stages == 1 or services.take_turn is None:
        return False
    return not may_keep(available_bytes(), plan.cluster.preparing_bytes, _preparing(plan) - 1)


def _wait(services: ProcessServices) -> None:
    time.sleep(_LOOK_S)
    services.heartbeat.live()


def _usable(available: int) -> int:
    return available - available // _LEFT


def _preparing(plan: Plan) -> int:
    """How many workers may prepare on one host."""
    members = plan.cluster.members
    return members.total(members.start)
