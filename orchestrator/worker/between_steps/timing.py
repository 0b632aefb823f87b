"""When evaluations and checkpoints are due, and what this member requests at the next vote.

A cadence in steps is a function of the step. For one in seconds the clock of one member decides, and its request is part of
the vote.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from orchestrator.common.values import Every
from orchestrator.config.plan import Plan
from orchestrator.worker.member.heartbeat import Heartbeat
from orchestrator.worker.step_report import Requests


class Timer:
    """Something that is due every so many steps, epochs or seconds. epoch: the steps of one."""

    def __init__(self, every: Every | None, epoch: int) -> None:
        self._steps = every.in_steps(epoch) if every is not None else None
        self._seconds = every.seconds if every is not None else None
        self._since = time.monotonic()

    def asks(self) -> bool:
        """Whether its time in seconds has passed."""
        return self._seconds is not None and time.monotonic() - self._since >= self._seconds

    def due(self, before: int, steps: int) -> bool:
        """Whether it became due after more than `before` and at most `steps` committed steps."""
        return self._steps is not None and steps // self._steps > before // self._steps

    def next(self, steps: int) -> int | None:
        """The step after which it is due next; None if no step decides that."""
        return None if self._steps is None else (steps // self._steps + 1) * self._steps

    def restart(self) -> None:
        self._since = time.monotonic()


class Patience:
    """Patience with others while nothing comes from them: limit_s since the last progress."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._since = time.monotonic()
        self._seen: object = None

    def exhausted(self, seen: object) -> bool:
        """Whether the limit has passed. seen: a value that progress changes; None if progress was made here."""
        now = time.monotonic()
        if seen is None or seen != self._seen:
            self._since, self._seen = now, seen
        return now - self._since > self.limit_s


class Timing:
    """One member's timers. keeps_time: its clock is the one that counts; samples: of the training set, 0 where that has no end;
    busy: whether its writer of checkpoints works."""

    def __init__(
        self, plan: Plan, samples: int, heartbeat: Heartbeat, busy: Callable[[], bool] = lambda: False
    ) -> None:
        epoch = -(-samples // plan.data.batch_size.at(0))
        self.evaluation = Timer(plan.cadence.evaluation, epoch)
        self.checkpoint = Timer(plan.checkpoints.every, epoch)
        archive = plan.checkpoints.archive
        self.archive = Timer(None if archive is None else Every(steps=archive), epoch)
        self.keeps_time = False
        self.awaited: Callable[[], None] | None = None  # for what the next vote waits; it may raise
        self._heartbeat = heartbeat
        self._busy = busy

    def requests(self) -> Requests:
        """Asked right before a vote."""
        if self.awaited is not None:
            self.awaited()
            self.awaited = None
        return Requests(
            evaluate=self.keeps_time and self.evaluation.asks(),
            halt=self._heartbeat.halt(),
            save=self._heartbeat.wants_save or (self.keeps_time and self.checkpoint.asks()),
            busy=self._busy(),
        )
