"""The controller with up to a thousand members: processor time, events, orders and memory, by the number of members.

The controller is the true one. Its members are virtual: they say what true ones say, in the same order, and nothing else of
them is there. The driver's own work, Ray and the network are not in these figures (`true_workers` has them).

    launch        all are started, each tells once that it prepares, and all get ready
    a second      each member's heartbeat and time of a micro-batch, and ten steps
    loss of one   its end is heard; the others are called off and report; the next generation begins
    of a tenth    as many ends at once, and the same
    join          those who replace them get ready; all leave at a boundary; the next generation begins

A tick follows each message, as if the driver heard no two at once.

It measures no seconds on the wall.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.config.plan import Members, Timeouts
from orchestrator.controller import controller
from orchestrator.controller.events import (
    Ask,
    Begin,
    CallOff,
    Command,
    Died,
    Ended,
    Event,
    Heartbeat,
    Ready,
    Reported,
    Start,
    Stepped,
    Tick,
    Timed,
)
from orchestrator.controller.state import Requirements
from orchestrator.records.progress import Progress

SIZES = (64, 256, 1000)
_REPEATS = 5  # of which the median counts
_PATIENCE_S = 1e9
_STEPS, _TURNS = 10, 4  # in a second; members are heard in so many parts
_NEIGHBOURS = 2  # of a lost member, who lose contact with it


def options(parser: argparse.ArgumentParser) -> None:
    numbers: Callable[[str], list[int]] = lambda text: [int(each) for each in text.split(",")]  # noqa: E731
    parser.add_argument("--members", type=numbers, default=list(SIZES), help="numbers of virtual members")


@dataclass
class Cost:
    """The cost of a part of a run to the controller."""

    seconds: float = 0.0  # of a processor, in `decide`
    events: int = 0  # that it was told
    orders: int = 0  # messages to members that follow from its commands
    begin_bytes: int = 0  # of the last order to begin a generation, as it is sent to each


@dataclass
class VirtualRun:
    """A run of so many members, told to the controller part by part."""

    members: int  # that it begins with
    by_speed: bool = True  # shards are assigned by speed, which looks at everybody's times
    now: float = 0.0  # virtual seconds
    cost: Cost = field(default_factory=Cost)  # of the part under way
    begin: Begin | None = None  # the last order to begin
    steps: int = 0  # that are committed
    starting: list[int] = field(default_factory=list)  # members that are not ready yet

    def __post_init__(self) -> None:
        requirements = Requirements(
            shards=self.members,
            members=Members(start=self.members, least=1, most=self.members),
            timeouts=Timeouts(_PATIENCE_S, 60.0, _PATIENCE_S),
            by_speed=self.by_speed,
            reports_stragglers=True,
        )
        started = time.process_time()
        self.state, commands = controller.initial(requirements, self.now)
        self.cost.seconds += time.process_time() - started
        self._obey(commands)

    def parts(self) -> dict[str, Cost]:
        """All of them, one after the other, each with its cost."""
        found = {"launch": self._part(self.launch), "a second": self._part(self.second)}
        found["loss of one"] = self._part(lambda: self.lose(1))
        found["join of one"] = self._part(self.join)
        found["loss of a tenth"] = self._part(lambda: self.lose(max(1, self.members // 10)))
        found["join of a tenth"] = self._part(self.join)
        return found

    def launch(self) -> None:
        for member in self.starting:
            self._tell(Heartbeat(member, "prepare", None, None, 1))
            self._tell(Tick())
        self._get_ready()

    def second(self) -> None:
        """One second of a run in which nothing happens."""
        assert self.begin is not None
        for beat in range(_TURNS):
            self.now += 1 / _TURNS
            for member in self.begin.members[beat::_TURNS]:
                self._tell(Heartbeat(member, "compute", self.steps, member, self.steps))
                self._tell(Timed(member, 0.01))
                self._tell(Tick())
        for _ in range(_STEPS):
            self._tell(Stepped(self.steps))
            self.steps += 1

    def lose(self, number: int) -> None:
        """The members with the highest ranks are lost."""
        assert self.begin is not None
        gone = self.begin.members[-number:]
        for member in gone:
            self._tell(Died(member, "killed"))
        staying = [member for member in self.begin.members if member not in {*gone}]
        for place, member in enumerate(staying):
            why = "peer" if place < _NEIGHBOURS else "called off"
            accused = len(staying) if why == "peer" else None
            self._report(member, Ended(why, Progress(self.steps), accuses=accused))  # type: ignore[arg-type]
            self._tell(Tick())
        self._tell(Stepped(self.steps))
        self.steps += 1

    def join(self) -> None:
        """Those who were started for them get ready, and the members leave at a boundary."""
        assert self.begin is not None
        leaving = self.begin.members
        self._get_ready()
        for member in leaving:
            self._report(member, Ended("regroup", Progress(self.steps)))
            self._tell(Tick())
        self._tell(Stepped(self.steps))
        self.steps += 1

    def _part(self, act: Callable[[], None]) -> Cost:
        act()
        found, self.cost = self.cost, Cost()
        return found

    def _get_ready(self) -> None:
        starting, self.starting = self.starting, []
        for member in starting:
            self._tell(Ready(member, {"steps": 10**6, "shard_state": False}, can_restore=True, node=member // 64))
            self._tell(Tick())

    def _report(self, member: int, ended: Ended) -> None:
        assert self.state.generation is not None
        self._tell(Reported(member, self.state.generation.number, ended))

    def _tell(self, event: Event) -> None:
        started = time.process_time()
        self.state, commands, _ = controller.decide(self.state, event, self.now)
        self.cost.seconds += time.process_time() - started
        self.cost.events += 1
        self._obey(commands)

    def _obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Start(member, _):
                    self.starting.append(member)
                    self.cost.orders += 1
                case Begin():
                    self.begin = command
                    self.cost.orders += len(command.members)
                    self.cost.begin_bytes = len(pickle.dumps(command))
                case CallOff(_, members):
                    self.cost.orders += len(members)
                case Ask():
                    self.cost.orders += 1
                case _:
                    pass


def measured(chosen: argparse.Namespace) -> str:
    costs = {number: _median(number) for number in chosen.members}
    return "\n\n".join((_times(costs), _messages(costs, {number: _memory(number) for number in chosen.members})))


def _median(members: int) -> dict[str, Cost]:
    runs = [VirtualRun(members).parts() for _ in range(_REPEATS)]
    for part, cost in runs[0].items():
        cost.seconds = statistics.median(run[part].seconds for run in runs)
    return runs[0]


def _memory(members: int) -> int:
    """Bytes that the controller's state takes after a second."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    run = VirtualRun(members)
    run.launch()
    run.second()
    found = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return found


def _times(costs: dict[int, dict[str, Cost]]) -> str:
    """Milliseconds of a processor for each part, and how much more that is for each member than with the fewest members."""
    first = min(costs)
    heads = ("part", *(f"{number:,} members ms" for number in costs), *(f"{number:,}, of each" for number in costs))
    rows: list[tuple[Any, ...]] = []
    for part in costs[first]:
        each = {number: found[part].seconds / number for number, found in costs.items()}
        rows.append(
            (
                part,
                *(f"{1000 * found[part].seconds:.3g}" for found in costs.values()),
                *(f"{each[number] / each[first]:.2f}" for number in costs),
            )
        )
    return _table(heads, rows)


def _messages(costs: dict[int, dict[str, Cost]], memory: dict[int, int]) -> str:
    heads = ("part", *(f"{number:,} members" for number in costs))
    rows = [
        (f"{part}: events, orders", *(f"{found[part].events:,}, {found[part].orders:,}" for found in costs.values()))
        for part in costs[min(costs)]
    ]
    rows.append(("an order to begin, kB", *(f"{found['launch'].begin_bytes / 1000:.3g}" for found in costs.values())))
    rows.append(("memory of the controller, MB", *(f"{memory[number] / 1e6:.3g}" for number in costs)))
    return _table(heads, rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])
