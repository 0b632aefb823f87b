"""A member's present activity, for the driver to see whether it makes progress, and requests to it. Threads share only this
object.

    compute thread    beat(activity) at every phase, micro-batch and validation batch; raises CalledOff
    control thread    snapshot()    to find who hangs: a member that stays in one activity and waits for nobody
                      call_off(g)   generation g is over: the compute thread leaves it at its next beat
                      ask(what, g)  request the end of generation g (regroup), stop or save at the next step boundary

`exchange` and `state_transfer` mean waiting for others, `idle` waiting for a generation: none of them is to blame for a stall.

Its `times` keep account of where the compute thread's time goes; only that thread may touch them.

It does not wake a member that waits inside `connect` (the caller of `call_off` cancels the listener too), nor decide who is
stuck.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from typing import Any, Literal

from orchestrator.common import injection
from orchestrator.errors import StopsWaiting
from orchestrator.records.progress import Activity
from orchestrator.worker.member.time_account import TimeAccount

Request = Literal["regroup", "stop", "save"]


class Halt(enum.IntEnum):
    """The request of a step report for the end of a step; the highest wins."""

    NONE = 0
    REGROUP = 1
    STOP = 2


class CalledOff(StopsWaiting):
    """The controller has called the present generation off."""

    def __init__(self, generation: int) -> None:
        super().__init__(f"generation {generation} was called off")


def _ignore(activity: Activity, step: int | None, shard: int | None) -> None:
    pass


class Heartbeat:
    """A member's present activity, and requests to it; thread-safe.

    The compute thread calls `enter`, `beat` and `heard`; any other thread calls `snapshot`, `ask` and `call_off`. note:
    receives every activity, to keep it for the case that this process dies (`crash_record.py`).
    """

    def __init__(
        self, note: Callable[[Activity, int | None, int | None], None] = _ignore, times: TimeAccount | None = None
    ) -> None:
        self.times = TimeAccount() if times is None else times
        self._note = note
        self._lock = threading.Lock()
        self._activity: Activity = "prepare"
        self._step: int | None = None
        self._shard: int | None = None
        self.computed: tuple[int | None, int | None] = None, None  # step and shard, when it came to rest last
        self._beats = 0
        self._generation = -1
        self._called_off = -1
        self._ends_with = -1  # a regroup is requested for this generation and those before it
        self._requests: set[Request] = set()

    def enter(self, generation: int) -> None:
        """Beats belong to this generation from now on. Raises CalledOff."""
        with self._lock:
            self._generation = generation
        self.beat("state_transfer")

    def beat(self, activity: Activity, step: int | None = None, shard: int | None = None, *, together: int = 0) -> None:
        """Note that this member has made progress and what it does now. together: so many micro-batches of a step are computed
        as one, and none by itself. Raises CalledOff."""
        with self._lock:
            self._be(activity, step, shard, together)
            self._check()
        injection.at(activity, step, self)

    def live(self) -> None:
        """A beat that keeps the present activity, in a wait that is nobody's fault. Raises CalledOff."""
        with self._lock:
            self._beats += 1
            self._check()

    def check(self) -> None:
        """Raises CalledOff; no beat, for waits in which nothing progresses."""
        with self._lock:
            self._check()

    def _check(self) -> None:
        if 0 <= self._generation <= self._called_off:
            raise CalledOff(self._generation)

    def rest(self) -> None:
        """The member is idle, between generations."""
        injection.at("idle", None, self)
        with self._lock:
            self.computed = self._step, self._shard
            self._be("idle")

    def _be(self, activity: Activity, step: int | None = None, shard: int | None = None, together: int = 0) -> None:
        self._activity, self._step, self._shard = activity, step, shard
        self._beats += 1
        self._note(activity, step, shard)
        self.times.turn(activity, step, shard, together)

    def snapshot(self) -> dict[str, Any]:
        with self._lock:
            return {"activity": self._activity, "step": self._step, "shard": self._shard, "beats": self._beats}

    def call_off(self, generation: int) -> None:
        """Call off this generation and earlier ones, also before the member enters it."""
        with self._lock:
            self._called_off = max(self._called_off, generation)

    def ask(self, what: Request, generation: int) -> None:
        """Request this in `generation`, also before the member enters it. A regroup is fulfilled by any later generation, the
        others are kept until `heard`."""
        with self._lock:
            if what == "regroup":
                self._ends_with = max(self._ends_with, generation)
            else:
                self._requests.add(what)

    def halt(self) -> Halt:
        """The halt that is requested."""
        with self._lock:
            if "stop" in self._requests:
                return Halt.STOP
            return Halt.REGROUP if 0 <= self._generation <= self._ends_with else Halt.NONE

    @property
    def wants_save(self) -> bool:
        with self._lock:
            return "save" in self._requests

    def heard(self, *requests: Request) -> None:
        """Drop these requests: they are fulfilled, or are now part of the run state."""
        with self._lock:
            self._requests.difference_update(requests)
