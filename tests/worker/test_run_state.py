"""A run state that travelled as JSON is the one that was sent."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Literal

import pytest

from orchestrator.config.plan import MonitoredMetric
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import Every
from orchestrator.numerics.grid import Grid
from orchestrator.optim.patience import Patience
from orchestrator.optim.ranking import Best, Ranking
from orchestrator.records import trace
from orchestrator.records.progress import Progress
from orchestrator.worker.between_steps.run_state import RunState
from tests.worker import pipelines as p
from tests.worker.runs import settings_for

PLAN = resolve(
    settings_for(p.Mlp, evaluate_every=Every(steps=2), schedule={"name": "plateau"}, early_stopping={"patience": 2})
)
START = RunState.start(PLAN, 3)


def test_the_progress_tells_committed_steps_and_whether_the_last_is_evaluated() -> None:
    assert START.progress == Progress(0)
    grid = Grid((1, None, -60), 5)
    run_state = START.committed(grid, 1, (trace.line(0, 1.5, -3),), None, evaluation_due=True, save_due=True)
    assert (run_state.progress, run_state.grid, run_state.save_due) == (Progress(1, evaluated=False), grid, True)
    run_state = run_state.evaluated({"validation/loss": 2.0})
    assert run_state.progress == Progress(1, evaluated=False)  # all take part in reporting, of a model in stages
    run_state = run_state.published()
    assert run_state.progress == Progress(1)
    run_state = run_state.committed(grid, 2, (trace.line(1, 1.5, -3),), None, evaluation_due=False, save_due=False)
    run_state = run_state.published()
    assert (run_state.progress, run_state.save_due) == (Progress(2), True)  # a checkpoint that was postponed stays due
    assert not run_state.saved().save_due


def test_a_checkpoint_that_stays_is_due_at_its_very_boundary() -> None:
    plan = resolve(settings_for(p.Mlp, evaluate_every=Every(steps=1)))
    plan = replace(plan, checkpoints=replace(plan.checkpoints, best=Best("validation/loss", "min", 1)))
    run_state, due = RunState.start(plan, 3), []
    for steps, loss in enumerate((2.0, 1.0, 1.5, 0.5), start=1):
        lines = (trace.line(steps - 1, loss, 0),)
        run_state = run_state.committed(
            run_state.grid, steps, lines, None, evaluation_due=True, save_due=False, archived=steps == 3
        )
        run_state = run_state.evaluated({"validation/loss": loss}).published()
        due.append(run_state.save_here)
        travelled = RunState.start(plan, 3).resumed(json.loads(json.dumps(run_state.as_dict())))
        assert travelled == run_state
        run_state = run_state.saved()
        assert not run_state.save_here
        assert run_state.untold().save_here
    assert due == [True, True, True, True]  # a better one, a better one, one of the archive, a better one
    assert run_state.best is not None
    assert run_state.best.entries == ((0.5, 4),)
    begun = run_state.begun()
    assert begun.best is not None
    assert (begun.best.entries, begun.steps) == ((), 4)


def test_a_run_that_begins_where_another_was_stopped_early_has_its_patience_anew() -> None:
    run_state = START
    for loss in (1.0, 2.0, 3.0):
        run_state = run_state.evaluated({"validation/loss": loss})
    assert run_state.stopped_early
    assert not run_state.begun().stopped_early


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("metric", ["validation/loss", "validation/accuracy"])
def test_another_metric_is_not_compared_with_the_best_value_of_the_one_before(
    metric: str, mode: Literal["min", "max"]
) -> None:
    """It matters to a run that begins with the state of another. The rate stays as low as it is by then. A resume may rank
    checkpoints by another metric."""
    run_state = replace(START, best=Ranking(Best("validation/loss", "min", 1)))
    for loss in (1.0, 2.0, 3.0, 4.0):
        run_state = run_state.evaluated({"validation/loss": loss})
    assert (START.plateau, START.stopping) != (None, None)
    watched = MonitoredMetric(metric, 3, mode)
    ranking = Ranking(Best(metric, mode, 1))
    fresh = replace(START, plateau=Patience(watched), stopping=Patience(watched), best=ranking)
    resumed = fresh.resumed(json.loads(json.dumps(run_state.as_dict())))
    plateau, best = resumed.plateau, resumed.best
    assert plateau is not None
    assert best is not None
    is_same = watched == MonitoredMetric("validation/loss", 3, "min")
    assert (plateau.best, plateau.waited, plateau.exhausted) == ((1.0, 0, 1) if is_same else (None, 0, 1))
    assert best == (run_state.best if is_same else ranking)


def test_patience_runs_out_by_what_was_seen() -> None:
    run_state = START
    for loss in (1.0, 2.0, 3.0):
        assert not run_state.stopped_early
        run_state = run_state.evaluated({"validation/loss": loss})
    assert run_state.stopped_early
    assert run_state.reductions == 0
    assert run_state.monitored() == ["validation/loss", "validation/loss"]


@pytest.mark.parametrize("best", [None, 0.1, math.inf, -0.0])
def test_it_travels_whole(best: float | None) -> None:
    patience = Patience(MonitoredMetric("validation/loss", 2, "min"), best, waited=1, exhausted=1)
    run_state = replace(
        START,
        grid=Grid((4, None, -1074), 5),
        steps=9,
        evaluation_due=True,
        save_due=True,
        unpublished=(trace.line(8, 0.1, 7),),
        stopping=patience,
        plateau=replace(patience, monitored=MonitoredMetric("validation/loss", 3, "min")),
    )
    assert START.resumed(json.loads(json.dumps(run_state.as_dict(), allow_nan=False))) == run_state
    with_vote = replace(run_state, second_vote=((-(2**63), 4), (2**63 - 1,)))
    assert START.resumed(json.loads(json.dumps(with_vote.for_transfer()))) == with_vote
    assert with_vote.as_dict() == run_state.as_dict()  # a checkpoint has no use for it
