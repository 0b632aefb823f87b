"""A server's whole life in a run, and what it has in common with a worker's: the walk through one generation.

A server hosts no shards and only adds (topology parameter_server, rule D5). It knows of the run the facts that the workers
agreed on and the course, which it follows by hearing every vote.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from orchestrator.engine import evaluation, handover
from orchestrator.engine.adder import Adder
from orchestrator.engine.ballots import Shape
from orchestrator.engine.course import Course
from orchestrator.engine.exchange import Exchange, Memory
from orchestrator.engine.generation import Connect, Ended, Generation, Host, Position
from orchestrator.engine.lockstep import Lockstep, Member
from orchestrator.engine.loop import Halted, Loop, Role
from orchestrator.engine.watched import Watched, live
from orchestrator.numerics import determinism
from orchestrator.numerics.layout import Layout
from orchestrator.records import trace
from orchestrator.settings import Settings
from orchestrator.transports.base import Regions


class Server:
    """`prepare` and `run` are called from the compute thread, as a worker's."""

    def __init__(self, settings: Settings, regions: Regions, host: Host | None = None) -> None:
        self._settings = settings
        self._regions = regions
        self._host = host or Host()
        self._memory: Memory | None = None
        self._loop: Loop | None = None
        self._has_course = False

    def prepare(self) -> dict[str, Any]:
        determinism.prepare_thread(self._settings.run.threads)
        return {}

    @property
    def position(self) -> Position | None:
        return self._loop.course.position if self._has_course and self._loop is not None else None

    def run(self, generation: Generation, rank: int, connect: Connect, facts: Mapping[str, Any]) -> Ended:
        """Live one generation: take part in every step and every evaluation."""
        settings, pulse = self._settings, self._host.pulse
        determinism.prepare_thread(settings.run.threads)
        if self._memory is None:
            self._memory = Memory(Layout.from_dict(facts["layout"]), self._regions, dtype=sum_dtype(settings))
        memory, loop = self._memory, self._loop or Loop(settings, facts, pulse)
        self._loop = loop

        def through(transport: Watched) -> Ended:
            for donor in generation.donors_of(rank):
                state, _ = handover.take(transport, generation.number, donor, deadline_s(settings))
                loop.course = loop.course.resumed(state.values)
            self._has_course = True
            transport.place = "exchange"
            halted = walk(settings, facts, loop, generation, rank, transport, memory, Adder(), _Listener())
            return Ended(halted, self.position)

        return live(generation, pulse, connect, through, lambda: self.position)

    def close(self) -> None:
        pass


class _Listener:
    """Implements `engine.loop.Role` for who hears everything and has nothing to say."""

    def running(self) -> None:
        pass

    def evaluate(self, step: int) -> evaluation.Results:  # noqa: ARG002
        return evaluation.Results()

    def tell(self, line: trace.Line, metrics: Mapping[str, float] | None, *, last: bool) -> None:
        pass

    def save(self, course: Course) -> None:
        pass

    def saved(self) -> None:
        pass


def walk(
    settings: Settings,
    facts: Mapping[str, Any],
    loop: Loop,
    generation: Generation,
    rank: int,
    transport: Watched,
    memory: Memory,
    member: Member,
    role: Role,
) -> Halted:
    """Steps from where the loop is to the end of the generation."""
    exchange = Exchange(generation.schedule, rank, generation.number, transport, memory, deadline_s(settings))
    tensors = [slot["name"] for slot in facts["layout"]["slots"]]
    shape = Shape(settings.data.shards, len(tensors), len(facts["counters"]))
    names = [*tensors, *facts["counters"]]
    lockstep = Lockstep(member, exchange, shape, names, exact=settings.reduction == "exact", grid=loop.course.grid)
    return loop.run(lockstep, exchange, role, saving=bool(generation.writers))


def sum_dtype(settings: Settings) -> torch.dtype:
    return torch.float64 if settings.reduction == "exact" else torch.float32


def deadline_s(settings: Settings) -> float:
    """Only a safety net: the controller finds who hangs, within the settings' time."""
    return 2 * settings.cluster.step_timeout_s + 10
