"""Pictures of a sweep that has ended, of an ensemble and of a simulation.

    sweeps.py     a sweep: its history, how much each key matters, its trials across the space
    simulated.py  simulated layouts beside each other

A sweep is complete without its pictures: nothing here raises, and a sentence says what could not be drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.driver.report.pictures import drawing_of
from orchestrator.experiments.search.asking import Result, Trial
from orchestrator.experiments.search.space import Space


@dataclass(frozen=True)
class SweepSeen:
    """The figures of a sweep that a picture shows. trials: as its report has them."""

    title: str
    metric: str
    direction: Literal["minimize", "maximize"]
    space: Space
    trials: Sequence[Mapping[str, Any]]


def draw_sweep(folder: Path, seen: SweepSeen) -> str | None:
    """Write `history.png`, `parallel.png` and, where there are enough trials, `importance.png` into `folder`; None, or what
    went wrong. Nothing is drawn where no trial has a value."""
    whole = [each for each in seen.trials if each["status"] == "finished"]
    if not whole:
        return None
    with drawing_of("the pictures") as failed:
        from orchestrator.experiments.pictures import sweeps
        from orchestrator.experiments.search.optuna_study import importances

        folder.mkdir(exist_ok=True)
        sweeps.history(seen.trials, seen.metric, seen.direction, seen.title, folder / "history.png")
        sweeps.parallel(seen.space, whole, seen.metric, seen.direction, seen.title, folder / "parallel.png")
        results = [Result(Trial(each["number"], dict(each["settings"])), each["value"]) for each in whole]
        shares = importances(seen.space, results, seen.direction)
        if shares:
            sweeps.importance(shares, seen.title, folder / "importance.png")
    return failed.why


def draw_ensemble(folder: Path, whole: Mapping[str, Any], title: str) -> str | None:
    """Write `members.png` into `folder`: members beside the whole; None, or what went wrong. whole: as the report has it."""
    with drawing_of("the pictures") as failed:
        from orchestrator.experiments.pictures import sweeps

        folder.mkdir(exist_ok=True)
        sweeps.members(whole, title, folder / "members.png")
    return failed.why
