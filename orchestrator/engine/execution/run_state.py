"""How far a run is, apart from its tensors: what has to be known to go on with the next step as if nothing had happened.

It changes as a whole, when a step commits and when the evaluation after it is done, and by what all members agreed on, so it
is the same at every member that is equally far, servers too. Whatever interrupts a member, its run state is that of one of these
two moments. It travels with the tensors, in state transfers and checkpoints.

What it does not do: know the time, the members, or the generation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.engine.member.generation import Position
from orchestrator.numerics.grid import Grid
from orchestrator.records.trace import Line
from orchestrator.settings import Settings
from orchestrator.updates.patience import Patience
from orchestrator.updates.schedules import SCHEDULES


@dataclass(frozen=True)
class RunState:
    """grid: for the next step. steps: committed ones. evaluation_due: after the last of them. save_due: a checkpoint, at the
    next boundary where it can be taken. pending_line: the trace line of the last step, without digest, until the step's evaluation
    is done. stopping, plateau: what early stopping and the plateau schedule have seen."""

    grid: Grid
    steps: int = 0
    evaluation_due: bool = False
    save_due: bool = False
    pending_line: Line | None = None
    stopping: Patience | None = None
    plateau: Patience | None = None

    @classmethod
    def start(cls, settings: Settings, tensors: int) -> RunState:
        """Of a run that begins, with so many tensors in its layout."""
        grid = Grid.unset(tensors, settings.data.shards)
        return cls(grid, stopping=_early_stopping(settings), plateau=_plateau(settings))

    @property
    def position(self) -> Position:
        return (self.steps, int(not self.evaluation_due))

    @property
    def reductions(self) -> int:
        """How often the plateau schedule has lowered the rate by now."""
        return 0 if self.plateau is None else self.plateau.exhausted

    @property
    def stopped_early(self) -> bool:
        return self.stopping is not None and self.stopping.exhausted > 0

    def watched(self) -> list[str]:
        """The metrics that decide something."""
        return [patience.metric for patience in (self.stopping, self.plateau) if patience is not None]

    def committed(self, grid: Grid, line: Line, *, evaluation_due: bool, save_due: bool) -> RunState:
        return replace(
            self,
            grid=grid,
            steps=self.steps + 1,
            pending_line=line,
            evaluation_due=evaluation_due,
            save_due=self.save_due or save_due,
        )

    def evaluated(self, metrics: Mapping[str, float]) -> RunState:
        return replace(
            self,
            evaluation_due=False,
            stopping=_after(self.stopping, metrics),
            plateau=_after(self.plateau, metrics),
        )

    def told(self) -> RunState:
        return replace(self, pending_line=None)

    def saved(self) -> RunState:
        return replace(self, save_due=False)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able and exact."""
        return {
            "grid": list(self.grid.exponents),
            "steps": self.steps,
            "evaluation_due": self.evaluation_due,
            "save_due": self.save_due,
            "pending_line": self.pending_line,
            "stopping": _patience_as_dict(self.stopping),
            "plateau": _patience_as_dict(self.plateau),
        }

    def resumed(self, values: Mapping[str, Any]) -> RunState:
        """The run state that `as_dict` described, in a run of these settings."""
        return replace(
            self,
            grid=Grid(tuple(values["grid"]), self.grid.shards),
            steps=values["steps"],
            evaluation_due=values["evaluation_due"],
            save_due=values["save_due"],
            pending_line=values["pending_line"],
            stopping=_resumed(self.stopping, values["stopping"]),
            plateau=_resumed(self.plateau, values["plateau"]),
        )


def _after(patience: Patience | None, metrics: Mapping[str, float]) -> Patience | None:
    return None if patience is None else patience.after(metrics[patience.metric])


def _patience_as_dict(patience: Patience | None) -> dict[str, Any] | None:
    if patience is None:
        return None
    best = None if patience.best is None else patience.best.hex()  # JSON has no infinity
    return {"best": best, "waited": patience.waited, "exhausted": patience.exhausted}


def _resumed(patience: Patience | None, values: Mapping[str, Any] | None) -> Patience | None:
    if patience is None or values is None:
        return patience
    best = None if values["best"] is None else float.fromhex(values["best"])
    return replace(patience, best=best, waited=values["waited"], exhausted=values["exhausted"])


def _early_stopping(settings: Settings) -> Patience | None:
    section = settings.early_stopping
    if section.patience is None:
        return None
    return Patience(section.metric, section.patience, section.mode, section.min_change)


def _plateau(settings: Settings) -> Patience | None:
    if settings.schedule.name != "plateau":
        return None
    options = SCHEDULES.resolve("plateau", settings.schedule.options)
    return Patience(options["metric"], options["patience"], options["mode"], 0.0)
