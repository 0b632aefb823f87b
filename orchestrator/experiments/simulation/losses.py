"""Losses and joins of a run in virtual time, decided by the project's own controller.

The members of this world do what the protocol says and nothing else: they start, run steps, are lost, leave when they are
called off, and begin again. The controller's orders take the times that the conditions give. A step that a loss interrupts is
computed again; when all are lost, so is what was done since the last checkpoint.

It plays no torn messages and no races: `tests/virtual_cluster` does.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from orchestrator.controller import controller
from orchestrator.controller.events import (
    Ask,
    Begin,
    CallOff,
    CheckpointSaved,
    Command,
    Died,
    End,
    Ended,
    Event,
    Kill,
    Ready,
    Recovered,
    Reported,
    Start,
    Stepped,
    Tick,
)
from orchestrator.controller.state import Requirements
from orchestrator.experiments.simulation.conditions import Conditions
from orchestrator.records.progress import Progress

MOST_WORKERS = 1000  # more take long: each loss and each join is a report of every member
_MOST_LOSSES, _MOST_DRAWN = 1000, 100_000  # a run whose workers are lost faster than steps are done has no end
_MANIFEST = {"steps": 0, "shard_state": False}
_ROUNDING = 1e-6  # of a step: one that ends at the moment of a loss is done
_NOTHING = (0.0, 0, 0.0, 0.0)


@dataclass(frozen=True)
class SimulatedOutcome:
    """The outcome of a simulated run."""

    seconds: float  # of the whole run
    steps: int  # number of steps that count
    again: int  # number of steps that were computed again
    losses: int  # number of workers that were lost
    joins: int  # number of workers that joined
    lost_s: float  # seconds in which no step that counts was computed
    ended: str | None = None  # why the controller ended the run before its last step; None where it did not

    @property
    def goodput(self) -> float:
        """Share of the time in which steps that count were computed."""
        return 1.0 - self.lost_s / self.seconds if self.seconds else 1.0


@dataclass(frozen=True)
class Scenario:
    """A run to be simulated."""

    requirements: Requirements  # what it asks of the controller
    conditions: Conditions  # what it meets
    steps: int  # number of steps to be done
    step_s: Callable[[int], float]  # seconds of a step with so many workers
    checkpoint: int = 0  # steps from one checkpoint to the next; 0 for none
    # seconds from the start, and place of the lost worker among those that live then; others are drawn besides
    losses: Sequence[tuple[float, int]] = ()


def simulate(scenario: Scenario) -> SimulatedOutcome:
    return _VirtualRun(scenario).run()


@dataclass
class _VirtualRun:
    """A scenario while it goes on, in virtual time."""

    scenario: Scenario  # what is simulated
    now: float = 0.0  # virtual time, in seconds from the start
    # what happens next: (time, number, action), a heap
    queue: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    numbered: int = 0  # entries that were queued so far; of equal times the first queued comes first
    running: Begin | None = None  # order of the present generation; None before the first one
    begun: int = 0  # which attempt at a step is under way
    begins: int = 0  # generations so far
    under_way: tuple[float, int, float, float] = _NOTHING  # since when, steps, seconds of each, and without saving
    done: int = 0  # steps that count so far
    best: int = 0  # most steps that were ever done
    saved: int = 0  # steps of the last checkpoint
    saved_s: float = 0.0  # seconds in which these were computed
    again: int = 0  # steps that were computed again
    computed_s: float = 0.0  # seconds in which steps that count were computed
    losses: int = 0  # workers that were lost
    drawn: int = 0  # losses, and moments at which there was nobody to be lost
    joins: int = 0  # workers that joined
    # living member -> steps that it has; None before its first generation
    held: dict[int, Progress | None] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)  # members that have left the present generation
    ended: End | None = None  # last order of the controller; None while the run goes on
    _regroup: bool = False  # asked for, at the next step

    def run(self) -> SimulatedOutcome:
        scenario = self.scenario
        self.state, commands = controller.initial(scenario.requirements, 0.0)
        draw = random.Random(scenario.conditions.seed)
        self._carry_out(commands)
        for at, place in scenario.losses:
            self._at(at, partial(self._lose, place))
        self._draw_loss(draw)
        while self.ended is None and self.queue and self.losses < _MOST_LOSSES and self.drawn < _MOST_DRAWN:
            at, _, happens = heapq.heappop(self.queue)
            if at > self.now:
                self.now = at
            happens()
        why = None if self.ended is None or self.ended.error is None else str(self.ended.error).splitlines()[0]
        if self.ended is None:
            why = f"{self.losses} workers were lost, and {self.done} of {scenario.steps} steps done"
        return SimulatedOutcome(
            self.now, self.done, self.again, self.losses, self.joins, max(0.0, self.now - self.computed_s), why
        )

    def _at(self, time: float, happens: Callable[[], None]) -> None:
        self.numbered += 1
        heapq.heappush(self.queue, (time, self.numbered, happens))

    def _after(self, seconds: float, happens: Callable[[], None]) -> None:
        self._at(self.now + seconds, happens)

    def _draw_loss(self, draw: random.Random) -> None:
        mean = self.scenario.conditions.failure_s
        if not mean:
            return

        def lose() -> None:
            self.drawn += 1
            if self.held:
                self._lose(draw.randrange(len(self.held)))
            self._draw_loss(draw)

        self._after(draw.expovariate(max(1, self.scenario.requirements.members.start) / mean), lose)

    def _tell(self, event: Event) -> None:
        if self.ended is None:
            self.state, commands, _ = controller.decide(self.state, event, self.now)
            self._carry_out(commands)

    def _carry_out(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Start(member, _):
                    wait = self.scenario.conditions.start_s if self.best or self.running else 0.0
                    self._after(wait, partial(self._ready, member))
                case Begin():
                    self._begin(command)
                case CallOff(generation, members):
                    for member in members:
                        self._leave(member, generation, "called off")
                case Ask(_, "regroup"):
                    self._regroup = True
                case Kill(member, _):
                    self.held.pop(member, None)
                case Recovered(kind, _, _):
                    self.joins += kind == "joined"
                case End():
                    self.ended = command
                case _:
                    pass

    def _ready(self, member: int) -> None:
        if member in self.state.members:
            self.held[member] = None
            self._tell(Ready(member, {**_MANIFEST, "steps": self.scenario.steps}, can_restore=True))

    def _begin(self, begin: Begin) -> None:
        self.running, self._regroup = begin, False
        self.reported = set()
        self.begun += 1
        if begin.restore is not None or begin.forgets:
            self.again += self.done - self.saved
            self.done, self.computed_s = self.saved, self.saved_s
        for member in begin.members:
            self.held[member] = Progress(self.done)
        begun, regroup_s = self.begun, self.scenario.conditions.regroup_s if self.begins else 0.0
        self.begins += 1
        if regroup_s:
            self._after(regroup_s, lambda: self._next(begun))
        else:
            self._next(begun)

    def _step_s(self) -> float:
        assert self.running is not None
        return self.scenario.step_s(self.running.workers)

    def _next(self, begun: int) -> None:
        """Compute the next step, unless somebody is lost in the meantime."""
        if begun != self.begun:
            return
        if self.done >= self.scenario.steps:
            assert self.running is not None
            for member in self.running.members:
                ended = Ended("finished", Progress(self.done), digest="same")
                self._tell(Reported(member, self.running.generation, ended))
            return
        every = self.scenario.checkpoint
        seconds = self._step_s()
        cost = seconds + (self.scenario.conditions.save_s / every if every else 0.0)
        # Nothing happens before the next event in the queue: the steps until then are one.
        free = int((self.queue[0][0] - self.now) / cost) if self.queue else self.scenario.steps
        steps = max(1, min(free, self.scenario.steps - self.done)) if not self._regroup else 1
        self.under_way = self.now, steps, cost, seconds
        self._after(steps * cost, lambda: self._stepped(begun, steps, seconds))

    def _advance(self, steps: int, seconds: float) -> None:
        """So many steps are done, of which each took these seconds."""
        assert self.running is not None
        every = self.scenario.checkpoint
        saved = (self.done + steps) // every * every if every else 0
        checkpointed = saved > self.saved
        if checkpointed:
            self.saved_s = self.computed_s + (saved - self.done) * seconds
        self.done += steps
        self.best = max(self.best, self.done)
        self.computed_s += steps * seconds
        for member in self.running.members:
            if member in self.held:
                self.held[member] = Progress(self.done)
        self._tell(Stepped(self.done - 1))
        if checkpointed:
            self.saved = saved
            self._tell(CheckpointSaved(saved))

    def _interrupt(self) -> None:
        """The step that is under way is lost; those before it are done, though they would have been reported with it."""
        since, steps, cost, seconds = self.under_way
        done = min(steps, int((self.now - since) / cost + _ROUNDING)) if cost else 0
        self.under_way = _NOTHING
        self.begun += 1
        if done:
            self._advance(done, seconds)

    def _stepped(self, begun: int, steps: int, seconds: float) -> None:
        if begun != self.begun or self.running is None:
            return  # a loss came in between
        self.under_way = _NOTHING
        self._advance(steps, seconds)
        if self._regroup:
            self._regroup = False
            running, self.begun = self.running, self.begun + 1
            for member in running.members:
                self._leave(member, running.generation, "regroup")
            return
        if begun == self.begun and self.ended is None:
            self._next(begun)

    def _lose(self, place: int) -> None:
        """Lose one that takes part; the others notice after `detect_s`."""
        if self.ended is not None or self.running is None:
            return
        alive = [member for member in self.running.members if member in self.held]
        if not alive:
            return
        member = alive[place % len(alive)]
        self.losses += 1
        self._interrupt()
        del self.held[member]
        self._after(self.scenario.conditions.detect_s, lambda: self._noticed(member))

    def _noticed(self, member: int) -> None:
        running = self.running
        assert running is not None
        self._tell(Died(member, "lost"))
        for other in running.members:
            if other in self.held and self.running is running:
                self._leave(other, running.generation, "peer")
        self._tell(Tick())

    def _leave(self, member: int, generation: int, why: str) -> None:
        if member not in self.held or member in self.reported:
            return
        self.reported.add(member)
        self._tell(Reported(member, generation, Ended(why, self.held[member])))  # type: ignore[arg-type]
