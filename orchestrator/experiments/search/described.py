"""A sweep whose file was read (`sweeps.py`), and the settings of each of its runs. An ensemble is one, too (`members.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.common.checked_values import Given
from orchestrator.config.settings import (
    Settings,
    as_yaml,
    determining,
    from_sources,
    redactor,
    sources,
    to_dict,
    to_yaml,
)
from orchestrator.config.settings.sources import Leaf, Source
from orchestrator.experiments.search.asking import Direction
from orchestrator.experiments.search.members import Ensemble
from orchestrator.experiments.search.outlook import Course
from orchestrator.experiments.search.space import Point


@dataclass(frozen=True)
class Sweep:
    """A sweep whose every key was read."""

    settings: Settings  # of its runs, with the first point of the space; of an ensemble without one
    course: Course  # what determines its trials
    options: Mapping[str, Any]  # of the search, as they were given
    metric: str  # of the objective
    parallel: int  # how many trials run side by side
    ensemble: Ensemble | None = None  # what is made of the trials; None for a search

    @property
    def kind(self) -> Literal["sweep", "ensemble"]:
        return "sweep" if self.ensemble is None else "ensemble"

    @property
    def noun(self) -> str:
        """The word for one of its trials."""
        return "trial" if self.ensemble is None else "member"

    @property
    def direction(self) -> Direction:
        return self.course.search.direction

    def settings_of(self, point: Point, rung: int | None = None) -> Settings:
        """The settings of a run of a trial. rung: None for the last one. Raises ConfigurationError."""
        shared = {} if self.ensemble is None else self.ensemble.shared()
        found = [sources.from_text(to_yaml(self.settings), "the sweep"), source_of({**shared, **point}, {})]
        if rung is not None and rung < self.course.last:
            steps = Leaf(("run", "steps"), Given(self.course.steps_of(rung), None, "halving.rungs"))
            found.append(Source([steps]))
        return from_sources(found, recorded=True)  # each was checked with the sweep

    def as_dict(self) -> dict[str, Any]:
        """The content of the sweep's file beside the settings of its runs."""
        course, search = self.course, self.course.search
        if self.ensemble is not None:
            return {"ensemble": self.ensemble.as_dict(), "parallel": self.parallel}
        own: dict[str, Any] = {
            "space": {key: dimension.as_dict() for key, dimension in course.space.items()},
            "search": {
                "name": search.name,
                "trials": search.trials,
                "batch": search.batch,
                "seed": course.seed,
                **self.options,
            },
            "objective": {"metric": self.metric, "direction": self.direction},
            "parallel": self.parallel,
        }
        if course.cuts:
            own["halving"] = {"rungs": [cut.steps for cut in course.cuts], "factor": course.cuts[0].factor}
        return own

    def as_yaml(self) -> str:
        """A file that describes this sweep whole, as a record holds it: without credentials."""
        known = redactor(self.settings)
        whole = {**self.as_dict(), **to_dict(self.settings)}
        return as_yaml({key: known.setting(key, value) for key, value in whole.items()})

    def determining(self) -> dict[str, Any]:
        """The part that determines its result."""
        own = {key: value for key, value in self.as_dict().items() if key != "parallel"}
        if self.ensemble is not None:
            own["ensemble"] = {key: value for key, value in own["ensemble"].items() if key != "register"}
        return {**own, "settings": determining(self.settings)}


def source_of(point: Point, places: Mapping[str, str]) -> Source:
    """The point as a source of settings. places: where its keys were given."""
    return Source(
        [Leaf(tuple(key.split(".")), Given(value, None, places.get(key, "space"))) for key, value in point.items()]
    )
