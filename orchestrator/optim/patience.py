"""How long a metric may go without getting better: early stopping, and the plateau schedule. Pure; all members decide
alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class MonitoredMetric:
    """A metric that decides something once it has not improved for `patience` evaluations in a row."""

    metric: str
    patience: int
    mode: Literal["min", "max"]
    min_change: float = 0.0


@dataclass(frozen=True)
class Patience:
    """best: the best value so far; waited: evaluations since then; exhausted: how often the patience has run out."""

    monitored: MonitoredMetric
    best: float | None = None
    waited: int = 0
    exhausted: int = 0

    def after(self, value: float) -> Patience:
        """The state after an evaluation. A value that is not a number is no improvement."""
        if self._improves(value):
            return replace(self, best=value, waited=0)
        if self.waited + 1 < self.monitored.patience:
            return replace(self, waited=self.waited + 1)
        return replace(self, waited=0, exhausted=self.exhausted + 1)

    def _improves(self, value: float) -> bool:
        if self.best is None:
            return value == value
        gain = self.best - value if self.monitored.mode == "min" else value - self.best
        return gain > self.monitored.min_change
