"""Where a member is, for those who ask whether it still moves; and what they want of it. The one object that threads share.

    compute thread    beat(activity) at every phase, micro-batch and validation batch; raises CalledOff
    control thread    snapshot()    for the hang rule: who is in one activity for long, and waits for nobody, is stuck
                      call_off(g)   generation g is over: the compute thread leaves it at its next beat
                      ask(what)     regroup, stop or save at the next step boundary; stays until it was heard

`exchange` and `state_transfer` mean waiting for others, `idle` waiting for a generation: none of them is to blame for a stall.

What it does not do: wake a member that waits inside `connect` (whoever calls off cancels the listener too), decide who is
stuck, or know the time.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from typing import Any, Literal

Activity = Literal["prepare", "compute", "exchange", "update", "evaluate", "checkpoint", "state_transfer", "idle"]
Request = Literal["regroup", "stop", "save"]


class Halt(enum.IntEnum):
    """What a step report asks for at the end of a step; the highest wins."""

    NONE = 0
    REGROUP = 1
    STOP = 2


class CalledOff(Exception):
    """The controller has called the present generation off."""

    def __init__(self, generation: int) -> None:
        super().__init__(f"generation {generation} was called off")


def _ignore(activity: Activity, step: int | None, shard: int | None) -> None:
    pass


class Heartbeat:
    """Thread-safe. The compute thread beats, enters and hears; any other thread looks, asks and calls off. note: is told every
    activity, for whoever has to know it when this process has died (`crash_record.py`)."""

    def __init__(self, note: Callable[[Activity, int | None, int | None], None] = _ignore) -> None:
        self._note = note
        self._lock = threading.Lock()
        self._activity: Activity = "prepare"
        self._step: int | None = None
        self._shard: int | None = None
        self._beats = 0
        self._generation = -1
        self._called_off = -1
        self._requests: set[Request] = set()

    def enter(self, generation: int) -> None:
        """From now on beats are those of this generation, which is what a wish to regroup was for. Raises CalledOff."""
        with self._lock:
            self._generation = generation
            self._requests.discard("regroup")
        self.beat("state_transfer")

    def beat(self, activity: Activity, step: int | None = None, shard: int | None = None) -> None:
        """This member moves, and is now here. Raises CalledOff."""
        with self._lock:
            self._be(activity, step, shard)
            self._check()

    def check(self) -> None:
        """Raises CalledOff; no beat: for who looks again and again while nothing moves."""
        with self._lock:
            self._check()

    def _check(self) -> None:
        if 0 <= self._generation <= self._called_off:
            raise CalledOff(self._generation)

    def rest(self) -> None:
        """Between generations."""
        with self._lock:
            self._be("idle")

    def _be(self, activity: Activity, step: int | None = None, shard: int | None = None) -> None:
        self._activity, self._step, self._shard = activity, step, shard
        self._beats += 1
        self._note(activity, step, shard)

    def snapshot(self) -> dict[str, Any]:
        with self._lock:
            return {"activity": self._activity, "step": self._step, "shard": self._shard, "beats": self._beats}

    def call_off(self, generation: int) -> None:
        """This generation, and earlier ones. Before a member enters it, too."""
        with self._lock:
            self._called_off = max(self._called_off, generation)

    def ask(self, what: Request) -> None:
        with self._lock:
            self._requests.add(what)

    def halt(self) -> Halt:
        """The halt that is asked for."""
        with self._lock:
            if "stop" in self._requests:
                return Halt.STOP
            return Halt.REGROUP if "regroup" in self._requests else Halt.NONE

    @property
    def wants_save(self) -> bool:
        with self._lock:
            return "save" in self._requests

    def heard(self, *requests: Request) -> None:
        """These are fulfilled, or others see to it now."""
        with self._lock:
            self._requests.difference_update(requests)
