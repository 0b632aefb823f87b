"""Where in a run a schedule is asked for its factor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from orchestrator.common.values import Span

# Options of the schedules that go to an end.
FinalFactor = Annotated[float, Field(ge=0, description="The factor at the end.")]
EndStep = Annotated[
    Span | None, Field(description="The step at which the factor is `final`, and stays so; null: the last one.")
]


@dataclass(frozen=True)
class Moment:
    """step: counted from 0, of so many `steps`; warmup: the first of them, in which the factor rises from 1 / warmup to 1;
    reductions: how often the watched metric has ceased to improve, for `plateau`; epoch: the steps of one."""

    step: int
    steps: int
    warmup: int = 0
    reductions: int = 0
    epoch: int = 1

    @property
    def since(self) -> int:
        """The steps since the end of the warm-up."""
        return self.step - self.warmup

    def part(self, end: Span | None = None) -> float:
        """How much of the way from the warm-up to `end`, or the last step, is done, from 0 to 1."""
        last = self.steps - 1 if end is None else end.in_steps(self.epoch)
        return min(1.0, self.since / max(1, last - self.warmup))
