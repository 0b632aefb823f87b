"""Optuna, and nothing else imports optuna; it is imported when a sweep asks for one of its samplers.

A sampler keeps a random state, which advances with each trial it is asked for, so what Optuna suggests depends on the order
in which trials were asked for and ended, and on a resume. Here each batch gets a sampler of its own, seeded by the sweep's
seed and the number of the batch, and a study in memory that was told all results in the order of the trials.

A sampler that looks at nothing but points and values is told them (`told`). One that leaves notes on trials, such as the
generation of an evolutionary search, is led through all batches again, which gives the same notes (`replayed`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from orchestrator.errors import Inconsistent
from orchestrator.experiments.search.asking import OTHERWISE, Ask, Direction, Result
from orchestrator.experiments.search.space import Choice, Dimension, Point, Space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

MakeSampler = Callable[[int], "BaseSampler"]  # of a seed


def suggestions(ask: Ask, make: MakeSampler) -> list[Point]:
    """The points that a fresh sampler suggests to who tells it all results at once."""
    with _quiet():
        study = _study(ask.direction, make(ask.batch_seed()))
        study.add_trials([_frozen(ask.space, result) for result in ask.results])
        return [point for _, point in _asked(study, ask.space, ask.count)]


def replayed(ask: Ask, make: MakeSampler) -> list[Point]:
    """The points that follow when each batch so far is asked for and answered again. Raises Inconsistent where other points
    come out than before."""
    with _quiet():
        study = _study(ask.direction, make(ask.batch_seed(0)))
        for batch in range(ask.batch):
            study.sampler = make(ask.batch_seed(batch))
            results = ask.results[batch * ask.size : (batch + 1) * ask.size]
            asked = _asked(study, ask.space, len(results))
            if [point for _, point in asked] != [result.trial.point for result in results]:
                raise Inconsistent(
                    f"the trials of batch {batch}, asked for again, come out otherwise",
                    OTHERWISE,
                    code="sweep.trials-differ",
                )
            for (trial, _), result in zip(asked, results, strict=True):
                _tell(study, trial, result)
        study.sampler = make(ask.batch_seed())
        return [point for _, point in _asked(study, ask.space, ask.count)]


def importances(space: Space, results: Sequence[Result], direction: Direction) -> dict[str, float]:
    """How much of the differences between values each key accounts for, the largest first, together 1; nothing where too few
    trials have a value. Source: Watanabe, Bansal & Hutter, "PED-ANOVA", IJCAI 2023."""
    import optuna

    whole = [result for result in results if result.value is not None and not result.pruned]
    varied = {key for key in space if len({repr(result.trial.point[key]) for result in whole}) > 1}
    if len(whole) < _FEWEST or not varied:
        return {}
    with _quiet():
        study = _study(direction, optuna.samplers.RandomSampler(0))
        study.add_trials([_frozen(space, result) for result in whole])
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        found = optuna.importance.get_param_importances(study, evaluator=evaluator, params=sorted(varied))
    return dict(sorted(found.items(), key=lambda entry: (-entry[1], entry[0])))


_FEWEST = 4  # trials, below which importances mean nothing


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna's lines of progress and its warnings of what is experimental: what is offered here is held to the laws."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(before)


def _study(direction: Direction, sampler: BaseSampler) -> Study:
    import optuna

    return optuna.create_study(sampler=sampler, direction=direction)


def _asked(study: Study, space: Space, count: int) -> list[tuple[Trial, Point]]:
    """They stay running, so that the later ones of a batch know of the earlier ones."""
    distributions = {key: _distribution(dimension) for key, dimension in space.items()}
    trials = [study.ask(distributions) for _ in range(count)]
    return [(trial, _point(space, trial.params)) for trial in trials]


def _point(space: Space, suggested: Mapping[str, Any]) -> Point:
    found: Point = {}
    for key, dimension in space.items():
        value = suggested[key]
        found[key] = dimension.choices[value] if isinstance(dimension, Choice) else dimension.snap(value)
    return found


def _distribution(dimension: Dimension) -> BaseDistribution:
    """A choice by its place, since Optuna takes 1 and true for one."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(dimension, Choice):
        return CategoricalDistribution(tuple(range(len(dimension.choices))))
    if dimension.whole:
        step = 1 if dimension.step is None else int(dimension.step)
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log, step=step)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log, step=dimension.step)


def _parameters(space: Space, point: Point) -> dict[str, Any]:
    return {
        key: next(place for place, value in enumerate(dimension.choices) if Choice((value,)).holds(point[key]))
        if isinstance(dimension, Choice)
        else point[key]
        for key, dimension in space.items()
    }


def _frozen(space: Space, result: Result) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    state = _state(result)
    return create_trial(
        state=state,
        params=_parameters(space, result.trial.point),
        distributions={key: _distribution(dimension) for key, dimension in space.items()},
        value=result.value if state is TrialState.COMPLETE else None,
        intermediate_values={} if result.value is None else {result.steps: result.value},
    )


def _tell(study: Study, trial: Trial, result: Result) -> None:
    from optuna.trial import TrialState

    state = _state(result)
    if result.value is not None:
        trial.report(result.value, result.steps)
    study.tell(trial, result.value if state is TrialState.COMPLETE else None, state=state)


def _state(result: Result) -> Any:
    """A pruned trial counts with its last value, and ranks below all trials that were not pruned."""
    from optuna.trial import TrialState

    if result.value is None:
        return TrialState.FAIL
    return TrialState.PRUNED if result.pruned else TrialState.COMPLETE
