"""The steps of a run, its evaluations and its end, the same at every member (rule A6).

Workers and servers walk through one loop. Whether to evaluate, to lower the learning rate or to stop early follows from what
all members have agreed on in the step itself, so nobody has to be told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.control.patience import Patience
from orchestrator.engine import evaluation
from orchestrator.engine.exchange import Exchange
from orchestrator.engine.lockstep import Lockstep, Outcome
from orchestrator.settings import Settings


@dataclass(frozen=True)
class Done:
    """A step that is done. metrics: of the evaluation after it, if there was one; last: the run ends with it."""

    outcome: Outcome
    metrics: dict[str, float] | None
    last: bool


class Clock:
    """When evaluations are due. By steps it is a function of the step; by seconds worker 0's watch is put to the vote."""

    def __init__(self, settings: Settings, steps: int) -> None:
        every = settings.evaluation.every
        self._steps = every.steps if every is not None else None
        self._seconds = every.seconds if every is not None else None
        self._last_step = steps - 1
        self._since = time.monotonic()

    def asks(self) -> bool:
        return self._seconds is not None and time.monotonic() - self._since >= self._seconds

    def due(self, outcome: Outcome) -> bool:
        by_steps = self._steps is not None and (outcome.step + 1) % self._steps == 0
        due = by_steps or outcome.evaluate or outcome.step == self._last_step
        if due:
            self._since = time.monotonic()
        return due


class Loop:
    """reductions: how often the plateau schedule has lowered the rate by now."""

    def __init__(self, settings: Settings, facts: Mapping[str, Any], clock: Clock) -> None:
        self._steps: int = facts["steps"]
        self._batches: int = facts["evaluation_batches"]
        self._clock = clock
        self._stopping = early_stopping(settings)
        self._plateau = plateau(settings)

    @property
    def reductions(self) -> int:
        return 0 if self._plateau is None else self._plateau.exhausted

    def run(
        self, lockstep: Lockstep, exchange: Exchange, evaluate: Callable[[int], evaluation.Results]
    ) -> Iterator[Done]:
        """Step after step. evaluate: computes this member's part of the evaluation after a step."""
        for step in range(self._steps):
            outcome = lockstep.step(step)
            metrics = None
            if self._batches and self._clock.due(outcome):
                metrics = evaluation.combine(exchange, step, self._batches, evaluate(step), self._watched())
            last = step == self._steps - 1 or (metrics is not None and self._enough(metrics))
            yield Done(outcome, metrics, last)
            if last:
                return

    def _watched(self) -> list[str]:
        return [patience.metric for patience in (self._stopping, self._plateau) if patience is not None]

    def _enough(self, metrics: dict[str, float]) -> bool:
        if self._plateau is not None:
            self._plateau = self._plateau.after(metrics[self._plateau.metric])
        if self._stopping is None:
            return False
        self._stopping = self._stopping.after(metrics[self._stopping.metric])
        return self._stopping.exhausted > 0


def early_stopping(settings: Settings) -> Patience | None:
    section = settings.early_stopping
    if section.patience is None:
        return None
    return Patience(section.metric, section.patience, section.mode, section.min_change)


def plateau(settings: Settings) -> Patience | None:
    section = settings.schedule
    if section.name != "plateau":
        return None
    return Patience(section.metric or "validation/loss", section.patience or 3, section.mode or "min", 0.0)
