"""An ensemble as a search: its space is the number of the member, so its members are trials, and what holds for a sweep holds
for it. Pure.

    conf: digits
    ensemble: {members: 5, data: disjoint, combine: mean}
    parallel: 3

Each member is an ordinary run with a seed of its own, drawn from `run.seed` and its number; which samples it has follows from
`run.seed`, its number and `ensemble.data` (`data/sampling/subsets.py`). One batch holds all members: none depends on another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from orchestrator.common.checked_values import A_LINE, Given
from orchestrator.config.settings import Settings
from orchestrator.errors import ConfigurationError, code_of, coded
from orchestrator.experiments.search.asking import Ask, Search
from orchestrator.experiments.search.declared import read_own
from orchestrator.experiments.search.outlook import Course
from orchestrator.experiments.search.space import Choice, Dimension, Point, Range
from orchestrator.worker.ensemble.combinations import COMBINATIONS

Determines = Literal["result", "execution"]
# key -> its type, its default, what it is, and whether it determines the result
OWN: dict[str, tuple[Any, Any, str, Determines]] = {
    "ensemble.members": (Annotated[int, Field(ge=2, le=1000)], 5, "How many are trained, each a run.", "result"),
    "ensemble.data": (
        Literal["all", "bagging", "disjoint"], "all",
        "Which training samples a member has: all; as many drawn with replacement; a part of its own.", "result",
    ),
    "ensemble.combine.name": (str, "mean", "How members are made one.", "result"),
    "ensemble.output": (
        Literal["logits", "values"], "logits",
        "The model's result: logits of classes, which are made probabilities, or values that are combined as they are.",
        "result",
    ),
    "ensemble.classes": (int, -1, "The dimension of logits in which the classes lie.", "result"),
    "ensemble.register": (
        Annotated[str | None, A_LINE], None, "The registered model of MLflow of which it becomes a version.", "execution",
    ),
}  # fmt: skip
_OPTIONS = ("ensemble", "combine")
METRIC = "validation/loss"


@dataclass(frozen=True)
class Ensemble:
    """An ensemble whose every key was read. The fields are the keys of its section, and the seed."""

    members: int  # how many are trained
    # training samples of a member: "all", "bagging" (as many, drawn with replacement) or "disjoint" (a part of its own)
    data: str
    combine: str  # name of the combination that makes them one
    output: Literal["logits", "values"]  # what the model returns
    classes: int  # dimension in which the classes lie, of logits
    seed: int  # from which those of the members follow
    register: str | None = None  # registered model of MLflow of which it becomes a version; None for none
    options: Mapping[str, Any] = field(default_factory=dict)  # of the combination, as they were given

    def as_dict(self) -> dict[str, Any]:
        """The section of the file."""
        own = {"members": self.members, "data": self.data, "combine": {"name": self.combine, **self.options}}
        return {**own, "output": self.output, "classes": self.classes, "register": self.register}

    def course(self) -> Course:
        """The part that determines the trials."""
        space: dict[str, Dimension] = {"run.seed": Choice(tuple(point["run.seed"] for point in self.points()))}
        if self.data != "all":
            space["data.subset.member"] = Range(0, self.members - 1)
        search = Search("members", self, self.members, self.members)
        return Course(space, search, self.seed)

    def __call__(self, ask: Ask) -> list[Point]:
        """As a search: its points are the members."""
        return self.points()[ask.first : ask.first + ask.count]

    def points(self) -> list[Point]:
        """The points of all members."""
        return [
            {"run.seed": seed_of(self.seed, number), **({} if self.data == "all" else {"data.subset.member": number})}
            for number in range(self.members)
        ]

    def shared(self) -> Point:
        """The settings that all members have in common, because they are members."""
        found: Point = {"data.subset.name": self.data, "data.subset.shared_seed": self.seed}
        return {**found, "data.subset.members": self.members} if self.data == "disjoint" else found


def seed_of(seed: int, member: int) -> int:
    """32 random bits: a function of the seed and the member's number."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/member/{member}".encode(), digest_size=4).digest(), "big")


def read_ensemble(
    given: Mapping[tuple[str, ...], Given], settings: Settings | None
) -> tuple[Ensemble | None, list[str]]:
    """The section `ensemble` and what is wrong with it. given: by full path; settings: of all members, None where they are
    wrong themselves."""
    values, problems, unknown = read_own(OWN, given)
    for path in unknown:
        if path[:2] != _OPTIONS:
            problems.append(
                coded(
                    "ensemble.no-such-key",
                    f"{given[path].where}: {'.'.join(path)}: no such key; there are {', '.join(OWN)}",
                )
            )
    name = values["ensemble.combine.name"]
    options = {path[2]: each for path, each in given.items() if path[:2] == _OPTIONS and path[2:] != ("name",)}
    try:
        _, option_problems = COMBINATIONS.read(name, options)
        problems += [coded(code_of(each), f"ensemble.combine.{option}: {each}") for option, each in option_problems]
    except ConfigurationError as error:
        problems += error.problems
    if name == "vote" and values["ensemble.output"] == "values":
        problems.append(
            coded(
                "ensemble.vote-of-values",
                "ensemble.combine: members vote for classes, and values have none; set ensemble.combine=mean",
            )
        )
    if settings is not None:
        problems += _misfits(settings, values["ensemble.members"])
    if problems or settings is None:
        return None, problems
    ensemble_values = {
        key.removeprefix("ensemble."): value for key, value in values.items() if key != "ensemble.combine.name"
    }
    combine_options = {option: each.value for option, each in options.items()}
    return Ensemble(combine=name, seed=settings.run.seed, options=combine_options, **ensemble_values), []


def _misfits(settings: Settings, members: int) -> list[str]:
    problems: list[str] = []
    if settings.data.subset.name != "all" or settings.data.subset.options:
        problems.append(
            coded(
                "ensemble.subset",
                "data.subset: of an ensemble ensemble.data says which samples a member has; leave data.subset out",
            )
        )
    if settings.tracking.register is not None:
        problems.append(
            coded(
                "ensemble.register",
                "tracking.register: each member would become a version; ensemble.register=NAME registers the whole",
            )
        )
    if settings.is_private:
        problems.append(
            coded(
                "ensemble.noise",
                "privacy.noise_multiplier: each member would spend an epsilon on the same clients, and nobody adds them up; "
                "leave privacy out, or train one model",
            )
        )
    if len({seed_of(settings.run.seed, number) for number in range(members)}) < members:
        problems.append(
            coded("ensemble.seed", "run.seed: two members would get the same seed from it; take another one")
        )
    return problems
