"""A sweep as a file and the command line describe it: what each run is, the space, the search, the objective.

    conf: digits                                                  # what is trained, as behind conf=
    run: {steps: 60}                                              # settings of every run, over those of conf
    space: {optimizer.lr: {low: 1e-4, high: 1e-1, log: true}}     # settings that differ from trial to trial
    search: {name: tpe, trials: 12}
    objective: {metric: validation/loss}
    parallel: 2

All problems are found at once, those of the settings among them: each end of each range and each choice is put into the
settings and read as a run would read it. Interpolations in the settings are resolved once, before the search.

It neither builds a pipeline nor looks at a search of the user's own (`laws.py`).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from orchestrator.common.checked_values import A_LINE, Given, show
from orchestrator.common.registry import is_reference
from orchestrator.config.settings import Settings, from_sources, sources
from orchestrator.config.settings.loading import Conf
from orchestrator.config.settings.schema import KEYS, shorthand
from orchestrator.config.settings.sections import SEED
from orchestrator.config.settings.sources import Leaf, Source
from orchestrator.errors import ConfigurationError, code_of, coded
from orchestrator.experiments.search import SEARCHES
from orchestrator.experiments.search.asking import Search
from orchestrator.experiments.search.declared import read_own, read_space
from orchestrator.experiments.search.described import Sweep, source_of
from orchestrator.experiments.search.halving import Rung
from orchestrator.experiments.search.members import METRIC, read_ensemble
from orchestrator.experiments.search.outlook import Course
from orchestrator.experiments.search.samplers import endless, size
from orchestrator.experiments.search.space import Space, corners
from orchestrator.records.redaction import Redactor
from orchestrator.worker.ensemble.combinations import COMBINATIONS

# key -> its type, its default, what it is, and whether it determines the result
OWN: dict[str, tuple[Any, Any, str, Literal["result", "execution"]]] = {
    "search.name": (str, "tpe", "Which points are tried.", "result"),
    "search.trials": (
        Annotated[int | None, Field(ge=1)], None, "How many trials; of a grid, null for all its points.", "result",
    ),
    "search.batch": (
        Annotated[int, Field(ge=1)], 4, "Trials that are asked for at once, when all before them have ended.", "result",
    ),
    "search.seed": (Annotated[int, SEED], 0, "The seed of the search's randomness.", "result"),
    "objective.metric": (
        Annotated[str, A_LINE], "validation/loss", "The metric to be best at the end of a run, or `train/loss`.", "result",
    ),
    "objective.direction": (Literal["minimize", "maximize"], "minimize", "Which values of it are good.", "result"),
    "halving.factor": (Annotated[int, Field(ge=2)], 3, "At each rung one trial in so many of a batch goes on.", "result"),
    "parallel": (Annotated[int, Field(ge=1)], 1, "How many trials run side by side.", "execution"),
}  # fmt: skip
RUNGS = "halving.rungs"  # whole numbers of steps, rising
SECTIONS = ("conf", "space", "search", "objective", "halving", "ensemble", "parallel")
_MOST = 100_000  # points of a grid

_MAPPING = "the mapping"


def load_sweep(
    entry: Conf,
    overrides: Sequence[str],
    *,
    kind: Literal["sweep", "ensemble"] | None = None,
    folder: Path = Path("conf"),
) -> Sweep:
    """The sweep of a file, a name in `folder` or a path, or of a mapping that stands for one, and of `key=value` overrides,
    which come last. kind: what is wanted; None for what the file describes. Raises ConfigurationError with every problem."""
    typed = sources.from_command_line(overrides)
    file = sources.from_name(entry, folder, kind or "sweep") if isinstance(entry, str) else sources.from_mapping(entry)
    if not file.readable:
        raise ConfigurationError(file.problems)
    sweep_keys: dict[tuple[str, ...], Given] = {}
    for source in (file, typed):
        _merge(sweep_keys, {path: given for path, given in map(_full, source.leaves) if path[0] in SECTIONS})
    rest = [
        replace(source, leaves=[leaf for leaf in source.leaves if leaf.path[0] not in SECTIONS])
        for source in (file, typed)
    ]
    problems = [_strayed(leaf) for source in rest for leaf in source.leaves if _near(leaf) is not None]
    for source in rest:
        source.leaves = [leaf for leaf in source.leaves if _near(leaf) is None]
    base = [sources.from_name(name, folder) for name in _names(sweep_keys.pop(("conf",), None))]
    if kind == "ensemble" or (kind is None and any(path[0] == "ensemble" for path in sweep_keys)):
        return _ensemble(sweep_keys, [*base, *rest], problems)
    if any(path[0] == "ensemble" for path in sweep_keys):
        raise ConfigurationError(
            [
                f"ensemble: {entry if isinstance(entry, str) else _MAPPING} describes an ensemble, which sweep= does not train"
            ],
            _OTHER_VERB,
            code="sweep.of-ensemble",
        )
    values, further = _values(sweep_keys)
    problems += further
    space, places, further = read_space({path[1:]: given for path, given in sweep_keys.items() if path[0] == "space"})
    problems += further
    settings, further = _checked([*base, *rest], space, places)
    problems += further
    if settings is not None and settings.tracking.register is not None:
        problems.append(
            coded(
                "sweep.register",
                "tracking.register: each trial would become a version; leave it out, and launch the best one's settings with "
                "it",
            )
        )
    search, options, further = _search(values, sweep_keys, space)
    problems += further
    cuts, further = _cuts(sweep_keys, values, settings, space)
    problems += further
    if problems or settings is None or search is None:
        raise ConfigurationError(list(dict.fromkeys(problems)))
    course = Course(space, search, values["search.seed"], cuts, settings.run.steps or 0)
    sweep = Sweep(settings, course, options, values["objective.metric"], values["parallel"])
    _check_rungs(sweep)
    return sweep


def _ensemble(sweep_keys: Mapping[tuple[str, ...], Given], described: Sequence[Source], problems: list[str]) -> Sweep:
    """Raises ConfigurationError."""
    problems += [
        coded(
            "sweep.ensemble-searched",
            f"{given.where}: {'.'.join(path)}: an ensemble is trained and not searched; leave {path[0]} out",
        )
        for path, given in sweep_keys.items()
        if path[0] not in ("ensemble", "parallel")
    ]
    values, further = _values({path: given for path, given in sweep_keys.items() if path[0] == "parallel"})
    problems += further
    settings: Settings | None = None
    try:
        settings = from_sources(list(described))
    except ConfigurationError as error:
        problems += error.problems
    ensemble, further = read_ensemble(
        {path: given for path, given in sweep_keys.items() if path[0] == "ensemble"}, settings
    )
    problems += further
    if problems or settings is None or ensemble is None:
        raise ConfigurationError(list(dict.fromkeys(problems)))
    return Sweep(settings, ensemble.course(), {}, METRIC, values["parallel"], ensemble)


_OTHER_VERB = "launch it with ensemble=NAME; a sweep has a space in place of the section ensemble"
_SHORT = {("search",): ("search", "name"), ("ensemble", "combine"): ("ensemble", "combine", "name")}


def _full(leaf: Leaf) -> Leaf:
    return Leaf(_SHORT.get(leaf.path, leaf.path), leaf.given)


def _merge(own: dict[tuple[str, ...], Given], new: Mapping[tuple[str, ...], Given]) -> None:
    """Put a later source over what is there; one that names another search leaves the options behind that this one lacks."""
    for section, table in ((("search",), SEARCHES), (("ensemble", "combine"), COMBINATIONS)):
        before, now = own.get((*section, "name")), new.get((*section, "name"))
        if before is not None and now is not None and before.value != now.value:
            kept = {*(table.options(now.value) if now.value in table else ()), "name"}
            for path in [path for path in own if path[:-1] == section and path[-1] not in kept]:
                if ".".join(path) not in OWN:
                    del own[path]
    own.update(new)


def _names(given: Given | None) -> list[str]:
    """The names of the files that describe the runs."""
    if given is None:
        return []
    entries = given.value if isinstance(given.value, list) else str(given.value).split(",")
    return [str(entry) for entry in entries]


def _near(leaf: Leaf) -> str | None:
    """The section that was meant by a key that is none of the settings'."""
    if any(key.path[0] == leaf.path[0] for key in KEYS):
        return None
    return next(iter(difflib.get_close_matches(leaf.path[0], SECTIONS, n=1)), None)


def _strayed(leaf: Leaf) -> str:
    meant = ".".join([_near(leaf) or "", *leaf.path[1:]])
    return coded(
        "settings.no-such-key-meant", f"{leaf.given.where}: {'.'.join(leaf.path)}: no such key; did you mean {meant}?"
    )


def _values(own: Mapping[tuple[str, ...], Given]) -> tuple[dict[str, Any], list[str]]:
    """The keys of a sweep that have a type, and what is wrong with them."""
    values, problems, others = read_own(OWN, own)
    for path in others:
        key = ".".join(path)
        if key != RUNGS and path[0] not in ("space", "search", "ensemble"):
            known = [*OWN, RUNGS, "conf", "space"]
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
            problems.append(coded("sweep.no-such-key", f"{own[path].where}: {key}: no such key{hint}"))
    return values, problems


def _checked(base: Sequence[Source], space: Space, places: Mapping[str, str]) -> tuple[Settings | None, list[str]]:
    """The settings with the first point of the space, and what is wrong with them at any end of any range."""
    first: Settings | None = None
    problems: list[str] = []
    given = {".".join(shorthand(leaf.path)): leaf.given.where for source in base[-1:] for leaf in source.leaves}
    for key, dimension in space.items():
        twice = given.get(".".join(shorthand(tuple(key.split(".")))))
        if twice is not None:
            problems.append(
                coded(
                    "sweep.given-and-searched",
                    f"{twice}: {key}: it is searched; leave it out here, or take it out of the space",
                )
            )
        if Redactor({}, os.environ).hidden({key: dimension.as_dict().get("choices", [])}):
            problems.append(
                coded(
                    "sweep.credentials",
                    f"{places.get(key, 'space')}: {key}: credentials cannot be searched: no record would hold them",
                )
            )
    for number, point in enumerate(corners(space)):
        try:
            settings = from_sources([*base, source_of(point, places)])
        except ConfigurationError as error:
            problems += error.problems
        else:
            first = settings if number == 0 else first
    return first, problems


def _search(
    values: Mapping[str, Any], sweep_keys: Mapping[tuple[str, ...], Given], space: Space
) -> tuple[Search | None, dict[str, Any], list[str]]:
    """The search, its options as they were given, and what is wrong with them."""
    name, trials = values["search.name"], values["search.trials"]
    options_given = {
        path[1]: each for path, each in sweep_keys.items() if path[0] == "search" and ".".join(path) not in OWN
    }
    try:
        options, misfits = SEARCHES.read(name, options_given)
    except ConfigurationError as error:
        return None, {}, list(error.problems)
    own_keys = ("trials", "batch", "seed")
    named = [(option, _or_own(option, sentence, own_keys)) for option, sentence in misfits]
    problems: list[str] = [coded(code_of(sentence), f"search.{option}: {sentence}") for option, sentence in named]
    if name == "grid":
        problems += [
            coded("sweep.grid-endless", f"space.{key}: a grid has to end: give this range a step, or choices")
            for key in endless(space)
        ]
        points = 0 if problems else size(space)
        if points > _MOST:
            problems.append(
                coded(
                    "sweep.grid-too-large", f"space: its grid has {points} points; take wider steps, or another search"
                )
            )
        trials = points if trials is None else min(trials, points)
    elif trials is None:
        problems.append(
            coded("sweep.trials-required", f"search.trials: required by search={name}, such as search.trials=20")
        )
    if problems or (name not in SEARCHES and not is_reference(name)):
        return None, {}, problems
    search = Search(
        name,
        SEARCHES[name],
        trials,
        values["search.batch"],
        values["objective.direction"],
        SEARCHES.resolve(name, options),
    )
    return search, {option: each.value for option, each in options_given.items()}, []


def _or_own(option: str, sentence: str, own: Iterable[str]) -> str:
    """The sentence, with a key of every search where that is nearer."""
    near = difflib.get_close_matches(option, own, n=1)
    if near and "no" in sentence.split():
        return coded("sweep.key-of-search", f"no such key; did you mean search.{near[0]}?")
    return sentence


def _cuts(
    own: Mapping[tuple[str, ...], Given], values: Mapping[str, Any], settings: Settings | None, space: Space
) -> tuple[tuple[Rung, ...], list[str]]:
    """The rungs before the last, and what is wrong with them."""
    given, factor = own.get(("halving", "rungs")), values["halving.factor"]
    if given is None:
        if ("halving", "factor") in own:
            return (), [coded("sweep.rungs-required", f"{RUNGS}: required by halving.factor, such as {RUNGS}=[20,60]")]
        return (), []
    rungs = given.value
    if not isinstance(rungs, list) or not rungs or not all(type(rung) is int and rung > 0 for rung in rungs):
        return (), [
            coded(
                "sweep.rungs", f"{given.where}: {RUNGS}: expected numbers of steps such as [20, 60], got {show(rungs)}"
            )
        ]
    problems: list[str] = []
    if sorted(set(rungs)) != rungs:
        problems.append(
            coded(
                "sweep.rungs-rise",
                f"{given.where}: {RUNGS}: the steps have to rise from rung to rung, got {show(rungs)}",
            )
        )
    if "run.steps" in space or "run.epochs" in space:
        problems.append(
            coded(
                "sweep.length-and-halving",
                "space: the length of a run is what halving chooses; take run.steps and run.epochs out",
            )
        )
    elif settings is not None and settings.run.steps is None:
        problems.append(
            coded("sweep.rungs-need-steps", f"{RUNGS}: needs run.steps, which is the last rung, in place of run.epochs")
        )
    elif settings is not None and settings.run.steps is not None and rungs[-1] >= settings.run.steps:
        problems.append(
            coded(
                "sweep.rungs-last",
                f"{given.where}: {RUNGS}: the last rung is run.steps={settings.run.steps}; those before it have to be below",
            )
        )
    if values["search.batch"] < factor:
        problems.append(
            coded(
                "sweep.batch-and-factor",
                f"search.batch: of {values['search.batch']} trials not one in {factor} can be kept; set "
                f"search.batch={factor * factor}, or a smaller halving.factor",
            )
        )
    return tuple(Rung(rung, factor, values["objective.direction"]) for rung in rungs), problems


def _check_rungs(sweep: Sweep) -> None:
    """Raises ConfigurationError for settings that do not fit the steps of some rung."""
    problems: list[str] = []
    first = next(iter(corners(sweep.course.space)))
    for rung in range(sweep.course.last):
        try:
            sweep.settings_of(first, rung)
        except ConfigurationError as error:
            problems += error.problems
    if problems:
        raise ConfigurationError(list(dict.fromkeys(problems)))
