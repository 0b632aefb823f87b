"""A server's whole life in a run, and what it has in common with a worker's.

A server hosts no shards and only adds (topology parameter_server, rule D5). It knows of the run the facts that the workers
agreed on and the course, which it follows by hearing every vote.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.engine import evaluation, handover
from orchestrator.engine.adder import Adder
from orchestrator.engine.ballots import Shape
from orchestrator.engine.course import Course
from orchestrator.engine.exchange import Exchange, Memory
from orchestrator.engine.footprint import sums_of
from orchestrator.engine.generation import Connect, Ended, Generation, Host, Position
from orchestrator.engine.lockstep import Lockstep, Member
from orchestrator.engine.loop import Loop
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

    def prepare(self) -> dict[str, Any]:
        determinism.prepare_thread(self._settings.run.threads)
        return {}

    @property
    def position(self) -> Position | None:
        """None before it has heard where the run is, in each generation anew."""
        return None if self._loop is None else self._loop.course.position

    def run(self, generation: Generation, rank: int, connect: Connect, facts: Mapping[str, Any]) -> Ended:
        """Live one generation: take part in every step and every evaluation.

        It forgets where it was in the one before: with no worker left that was there, the run begins anew.
        """
        settings, pulse = self._settings, self._host.pulse
        determinism.prepare_thread(settings.run.threads)
        if self._memory is None:
            layout = Layout.from_dict(facts["layout"])
            self._memory = Memory(layout, self._regions, sums=sums_of(settings), contributes=False)
        self._memory.suit(generation.schedule, rank)
        memory, loop = self._memory, Loop(settings, facts, pulse)
        self._loop = None

        def through(transport: Watched) -> Ended:
            for donor in generation.donors_of(rank):
                state, _ = handover.take(transport, generation.number, donor, deadline_s(settings))
                loop.course = loop.course.resumed(state.values)
            self._loop = loop
            transport.place = "exchange"
            exchange = exchange_of(settings, generation, rank, transport, memory)
            lockstep = lockstep_of(settings, facts, Adder(), exchange, loop.course)
            halted = loop.run(lockstep, exchange, _Listener(), saving=bool(generation.writers))
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


def exchange_of(settings: Settings, generation: Generation, rank: int, transport: Watched, memory: Memory) -> Exchange:
    return Exchange(generation.schedule, rank, generation.number, transport, memory, deadline_s(settings))


def lockstep_of(
    settings: Settings, facts: Mapping[str, Any], member: Member, exchange: Exchange, course: Course
) -> Lockstep:
    """Steps from where the course is."""
    tensors = [slot["name"] for slot in facts["layout"]["slots"]]
    shape = Shape(settings.data.shards, len(tensors), len(facts["counters"]))
    names = [*tensors, *facts["counters"]]
    return Lockstep(member, exchange, shape, names, exact=settings.reduction == "exact", grid=course.grid)


def deadline_s(settings: Settings) -> float:
    """Only a safety net: the controller finds who hangs, within the settings' time."""
    return 2 * settings.cluster.step_timeout_s + 10
