"""How long a metric may go without getting better: early stopping, and the plateau schedule. Pure; all members decide
alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class MonitoredMetric:
    """A metric that decides something once it has not improved for `patience` evaluations in a row."""

    metric: str  # its name
    patience: int  # evaluations
    mode: Literal["min", "max"]  # whether less or more is better
    min_change: float = 0.0  # by less it has not improved
    relative: bool = False  # whether min_change is a share of the best value
    cooldown: int = 0  # so many evaluations after patience has run out do not count


@dataclass(frozen=True)
class Patience:
    """How long a metric has not got better. best: the best value so far; waited: evaluations since then; exhausted: how often
    the patience has run out; cooling: so many evaluations do not count yet."""

    monitored: MonitoredMetric
    best: float | None = None
    waited: int = 0
    exhausted: int = 0
    cooling: int = 0

    def after(self, value: float) -> Patience:
        """The state after an evaluation. A value that is not a number is no improvement."""
        best = value if self._improves(value) else self.best
        if self.cooling:
            return replace(self, best=best, waited=0, cooling=self.cooling - 1)
        if best is not self.best:
            return replace(self, best=value, waited=0)
        if self.waited + 1 < self.monitored.patience:
            return replace(self, waited=self.waited + 1)
        return replace(self, waited=0, exhausted=self.exhausted + 1, cooling=self.monitored.cooldown)

    def _improves(self, value: float) -> bool:
        if self.best is None:
            return value == value
        least, mode = self.monitored.min_change, self.monitored.mode
        if self.monitored.relative:  # as torch's ReduceLROnPlateau has it, also for negative values
            return value < self.best * (1 - least) if mode == "min" else value > self.best * (1 + least)
        gain = self.best - value if mode == "min" else value - self.best
        return gain > least
