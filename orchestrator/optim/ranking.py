"""The best evaluations of a run, whose checkpoints stay. Pure; all members decide alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Best:
    """Which evaluations are the best: by what metric, and how many of them."""

    metric: str
    mode: Literal["min", "max"]
    keep: int


@dataclass(frozen=True)
class Ranking:
    """The best evaluations of a run so far. entries: (value, steps done) of the best evaluations so far, the best first; of
    equal ones the earlier."""

    of: Best
    entries: tuple[tuple[float, int], ...] = ()

    def after(self, value: float, steps: int) -> Ranking:
        """The ranking after an evaluation. A value that is not a number is none of the best."""
        if value != value:
            return self
        others = [entry for entry in self.entries if entry[1] != steps]  # it may be done once more
        sign = 1 if self.of.mode == "min" else -1
        ranked = sorted([*others, (value, steps)], key=lambda entry: (sign * entry[0], entry[1]))
        return replace(self, entries=tuple(ranked[: self.of.keep]))

    def has(self, steps: int) -> bool:
        """Whether the evaluation after so many steps is among them."""
        return any(each == steps for _, each in self.entries)

    def as_list(self) -> list[list[str | int]]:
        """For JSON, which has no infinity."""
        return [[value.hex(), steps] for value, steps in self.entries]

    def resumed(self, entries: Iterable[Sequence[str | int]]) -> Ranking:
        """The one that `as_list` described."""
        return replace(self, entries=tuple((float.fromhex(str(value)), int(steps)) for value, steps in entries))
