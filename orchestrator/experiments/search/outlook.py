"""The runs of a sweep that are due, as a pure function of it and of what has ended, so that every slot count, every order of
completion and every resume goes the same way.

A batch is asked for when all results before it are known. Its trials are trained for the steps of the first rung, those that
are kept for the steps of the next, up to the last one. A rung is a run of its own from the first step, with its own length: it
has an identity, a digest and a rerun as any other run, and a learning-rate schedule that ends with the run ends there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.common.import_string import raised
from orchestrator.errors import Inconsistent, OrchestratorError, RunFailed
from orchestrator.experiments.search.asking import OTHERWISE, Result, Search, Trial, next_batch
from orchestrator.experiments.search.halving import Rung, prune
from orchestrator.experiments.search.space import Space, problem_of

TrialRung = tuple[int, int]  # (trial, rung): one run


@dataclass(frozen=True)
class Ended:
    """The outcome of a run of a trial. value: None where it failed; why: it did."""

    run_id: str | None
    value: float | None
    digest: str | None = None
    why: str | None = None


@dataclass(frozen=True)
class Course:
    """The part of a sweep that determines its trials. cuts: the rungs before the last; steps: of the last one, 0 where its
    length is given in epochs."""

    space: Space
    search: Search
    seed: int
    cuts: Sequence[Rung] = ()
    steps: int = 0

    @property
    def last(self) -> int:
        """The number of the last rung."""
        return len(self.cuts)

    def steps_of(self, rung: int) -> int:
        return self.cuts[rung].steps if rung < self.last else self.steps


@dataclass(frozen=True)
class Cut:
    """A decision: of the trials of a batch at a rung, which ones went on."""

    batch: int
    rung: int
    kept: tuple[int, ...]


@dataclass
class Outlook:
    """The state of a sweep: its results so far, and what it has to run next. trials: all that were asked for; due: what is
    to be run now, in order, nothing when the sweep is complete; results: of the batches that are complete; batches: the
    trials of each."""

    trials: list[Trial] = field(default_factory=list)
    due: list[TrialRung] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    batches: list[list[Trial]] = field(default_factory=list)


def look(
    course: Course, ended: Mapping[TrialRung, Ended], asked: Sequence[Sequence[Trial]] = (), *, further: bool = True
) -> Outlook:
    """Derive the state of a sweep from what has ended. asked: the trials of batches that are known already, which need not
    be asked for again; further: whether a batch that follows on these is asked for. Raises RunFailed for a search of the
    user's own that gives none."""
    found = Outlook()
    while True:
        batch = list(next(iter(asked[len(found.batches) :]), ()))
        if not batch and further:
            batch = _following(course, found.results)
        if not batch:
            return found
        found.batches.append(batch)
        found.trials += batch
        _follow(course, batch, ended, found)
        if found.due:
            return found


def _following(course: Course, results: Sequence[Result]) -> list[Trial]:
    """The batch that follows on these results. `laws` has looked at the first ones only. Raises RunFailed."""
    search = course.search
    wanted = max(0, min(search.batch, search.trials - len(results)))
    try:
        batch = next_batch(course.space, search, course.seed, results)
        wrong = None if len(batch) == wanted else f"gives {len(batch)} points where {wanted} are asked for"
        wrong = wrong or next(filter(None, (problem_of(course.space, trial.point) for trial in batch)), None)
    except OrchestratorError:
        raise
    except Exception as error:  # of the user's code, whatever it raises
        wrong = raised(error)
    if wrong is not None:
        raise RunFailed(
            f"search={search.name}, asked for trial {len(results)}: it {wrong}",
            "mend it, and launch a new sweep: this one goes on with the code it began with",
            code="sweep.search-failed",
        )
    return batch


def verify(course: Course, outlook: Outlook) -> None:
    """The batches of the outlook, asked for again, come out as they did. Raises Inconsistent."""
    known = 0
    for number, batch in enumerate(outlook.batches):
        again = _following(course, outlook.results[:known])
        if again != batch:
            raise Inconsistent(
                f"the trials of batch {number}, asked for again, come out otherwise",
                OTHERWISE,
                code="sweep.trials-differ",
            )
        known += len(batch)


def _follow(course: Course, batch: Sequence[Trial], ended: Mapping[TrialRung, Ended], found: Outlook) -> None:
    """Put what is due of a batch into `found`, or its results when nothing is."""
    alive, reached = list(batch), dict.fromkeys((trial.number for trial in batch), 0)
    for rung in range(course.last + 1):
        reached.update((trial.number, rung) for trial in alive)
        found.due = [(trial.number, rung) for trial in alive if (trial.number, rung) not in ended]
        if found.due:
            return
        if rung < course.last:
            kept = prune(course.cuts[rung], {trial.number: ended[trial.number, rung].value for trial in alive})
            found.cuts.append(Cut(len(found.batches) - 1, rung, tuple(kept)))
            alive = [trial for trial in alive if trial.number in kept]
    for trial in batch:
        rung = reached[trial.number]
        value = ended[trial.number, rung].value
        found.results.append(
            Result(trial, value, course.steps_of(rung), pruned=value is not None and rung < course.last)
        )
