"""Threads that take turns, and a clock that only they move. The thread that goes on is drawn from a seed, so a whole run of
many threads is a function of that seed, and a time-out of a minute costs nothing.

    schedule = Schedule(Random(7))
    schedule.spawn(act, Process("worker 3"))
    schedule.wait_for(lambda: done, timeout_s=60)      # others go on meanwhile; time passes when nobody can

A task gives way only where it says so (`pause`, `wait_for`, `sleep`), so what lies between two such points happens at once.
A process is what its tasks have in common: when it is killed, each of them unwinds by `Killed` where it gave way; when it is
stopped, none of them goes on until it is killed or continued.

It does not preempt. Two threads that share memory without a word to the schedule in between are not shuffled.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

MOST_TURNS = 400_000
MOST_SECONDS = 3_000.0
_BEGINNING_S = 1_000.0
_TURN_S = 0.002  # the longest that a turn takes


class Killed(BaseException):
    """Not an Exception: nothing may catch it."""


@dataclass(eq=False)
class Process:
    """weight: how readily its tasks get a turn."""

    name: str
    weight: float = 1.0
    alive: bool = True
    stopped: bool = False


@dataclass(eq=False)
class Task:
    name: str
    process: Process
    turn: threading.Lock = field(default_factory=threading.Lock)
    until: Callable[[], bool] | None = None
    deadline: float | None = None
    done: bool = False

    def can_go_on(self, now: float) -> bool:
        if not self.process.alive:
            return True
        if self.process.stopped:
            return False
        late = self.deadline is not None and self.deadline <= now
        return late or self.until is None or self.until()


class Schedule:
    """Built in the thread that is to be its first task. haste: how often a `pause` gives nobody else a turn."""

    def __init__(self, dice: Random, haste: float = 0.0) -> None:
        self.now = _BEGINNING_S
        self.dice = dice
        self.current = Task("main", Process("driver"))
        self._main = self.current
        self._main.turn.acquire()
        self._haste = haste
        self._tasks = [self._main]
        self._threads: list[threading.Thread] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._turns = 0
        self._fault: BaseException | None = None
        self._closing = False

    def monotonic(self) -> float:
        return self.now

    def spawn(self, act: Callable[[], Any], process: Process, name: str = "") -> None:
        task = Task(name or process.name, process)
        task.turn.acquire()
        thread = threading.Thread(target=self._live, args=(task, act), name=task.name, daemon=True)
        self._tasks.append(task)
        self._threads.append(thread)
        thread.start()

    def at(self, moment: float, act: Callable[[], None]) -> None:
        """Do this then, whoever has the turn."""
        heapq.heappush(self._timers, (moment, next(self._numbers), act))

    def touch(self, process: Process) -> None:
        """Its tasks may be able to go on now. A schedule may look at those alone."""

    def pause(self) -> None:
        """Others may have a turn here."""
        process = self.current.process
        if self.dice.random() >= self._haste or process.stopped or not process.alive:
            self._give_way(None, None)

    def sleep(self, seconds: float) -> None:
        self._give_way(lambda: False, self.now + seconds)

    def wait_for(self, is_so: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Whether it came to that in time."""
        self._give_way(is_so, None if timeout_s is None else self.now + timeout_s)
        return is_so()

    def close(self) -> None:
        """Kill all processes but that of the main task, and wait for their threads."""
        for task in self._tasks:
            task.process.alive = task is self._main
        self._closing = True
        while len(self._tasks) > 1:
            self.current = self._tasks[1]
            self.current.turn.release()
            self._main.turn.acquire()
        for thread in self._threads:
            thread.join()

    def _give_way(self, until: Callable[[], bool] | None, deadline: float | None) -> None:
        task = self.current
        if not task.process.alive:
            raise Killed(task.name)
        task.until, task.deadline = until, deadline
        following = self._following()
        if following is not task:
            self.current = following
            following.turn.release()
            task.turn.acquire()
        if not task.process.alive:
            raise Killed(task.name)
        if task is self._main and self._fault is not None:
            raise self._fault

    def _following(self) -> Task:
        self._turns += 1
        self.now += self.dice.random() * _TURN_S
        while self._fault is None:
            while self._timers and self._timers[0][0] <= self.now:
                heapq.heappop(self._timers)[2]()
            able = [task for task in self._tasks if task.can_go_on(self.now)]
            if self._turns > MOST_TURNS or self.now > _BEGINNING_S + MOST_SECONDS:
                self._fault = AssertionError(f"no end after {self._turns} turns, {self.now - _BEGINNING_S:.0f} s")
            elif able:
                return self.dice.choices(able, [task.process.weight for task in able])[0]
            else:
                self._let_time_pass()
        return self._main

    def _let_time_pass(self) -> None:
        moments = [task.deadline for task in self._tasks if task.deadline is not None and not task.process.stopped]
        moments += [self._timers[0][0]] if self._timers else []
        if moments:
            self.now = max(self.now, min(moments))
        else:
            self._fault = AssertionError(f"all wait for ever: {[task.name for task in self._tasks]}")

    def _live(self, task: Task, act: Callable[[], Any]) -> None:
        task.turn.acquire()
        try:
            if task.process.alive:
                act()
        except Killed:
            pass
        except BaseException as error:
            self._fault = self._fault or error
        task.done = True
        self._tasks.remove(task)
        self.current = self._main if self._closing else self._following()
        self.current.turn.release()


class Condition:
    """The schedule's tasks use this as `threading.Condition`: they take turns anyway, so nothing needs a lock."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._changes = 0

    def __enter__(self) -> Condition:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def notify_all(self) -> None:
        self._changes += 1

    def wait(self, timeout_s: float | None = None) -> bool:
        known = self._changes
        return self._schedule.wait_for(lambda: self._changes != known, timeout_s)

    def wait_for(self, is_so: Callable[[], bool], timeout_s: float | None = None) -> bool:
        return is_so() or self._schedule.wait_for(is_so, timeout_s)
