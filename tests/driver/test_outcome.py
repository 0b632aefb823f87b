"""The JSON object of the contract, for every way a run can end."""

from __future__ import annotations

import json
import math

import pytest

from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import ended_run
from orchestrator.cli.sweep import ended_sweep
from orchestrator.common.values import Span, Steps
from orchestrator.data.plan import Data
from orchestrator.driver.report.outcome import RunOutcome
from orchestrator.errors import (
    ClusterUnavailable,
    Inconsistent,
    Interrupted,
    NonFinite,
    OrchestratorError,
    PipelineRaised,
    WorkerLost,
)
from orchestrator.experiments.sweep.report import SweepReport
from orchestrator.experiments.sweep.trials import WrongMetricError


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "finished"),
        (NonFinite("nan", "lower it", code="loss.value"), "failed"),
        (Interrupted("by SIGINT", code="run.interrupted"), "killed"),
    ],
)
def test_status_and_error(error: OrchestratorError | None, status: str) -> None:
    report = RunOutcome(error=error).as_dict("r", started=0.0)
    assert report["status"] == status
    assert ("error" in report) == (error is not None)
    if error is not None:
        assert report["error"] == error.told()
        assert error.told().keys() == {"kind", "code", "message", "remedy"}


def test_who_would_meet_it_again_is_not_told_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    raised, again = PipelineRaised("loss() raised"), PipelineRaised("loss() raised")
    again.recurs = True
    nan = NonFinite("nan")
    for error, repeats, recurs in (
        (raised, True, False),
        (again, True, True),
        (nan, True, True),
        (nan, False, False),  # of an asynchronous run, or one with fewer sites
        (Interrupted("by SIGINT"), True, False),
        (WorkerLost("killed"), True, False),
    ):
        outcome = RunOutcome(error=error, checkpoint=7, repeats=repeats)
        assert outcome.recurs == recurs
        ended_run("0123", outcome, Arguments("", (), 0.0))
        assert ("go on from step 7: python -m orchestrator resume=0123" in capsys.readouterr().err) == (not recurs)
    assert not RunOutcome(checkpoint=7).recurs
    ended_run("0123", RunOutcome(error=WorkerLost("killed"), checkpoint=7), Arguments("", ("segments=FILE",), 0.0))
    assert "resume=" not in capsys.readouterr().err, "nobody goes on with an audit"


def test_who_has_lost_this_node_alone_is_told_to_go_on_by_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    """The user was told to resume a run with which the head goes on a minute later."""
    lost = RunOutcome(error=ClusterUnavailable("the raylet has ended"), checkpoint=7, head_goes_on=True)
    ended_run("0123", lost, Arguments("", (), 0.0))
    said = capsys.readouterr().err
    assert "the head of that Ray goes on with the run" in said
    assert "resume=" not in said


def test_who_goes_on_with_a_run_of_another_store_names_that(capsys: pytest.CaptureFixture[str]) -> None:
    stopped = Interrupted("by SIGINT")
    ended_run("0123", RunOutcome(error=stopped, checkpoint=7, store="http://server:5000"), Arguments("", (), 0.0))
    assert "resume=0123 tracking.uri=http://server:5000\n" in capsys.readouterr().err
    ended_sweep(SweepReport("4567", error=stopped, uri="http://me:secret@server:5000"), Arguments("", (), 0.0), "sweep")
    told = capsys.readouterr().err
    assert "resume=4567 tracking.uri=" in told
    assert "secret" not in told


def test_who_has_named_a_metric_that_no_run_has_is_not_told_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    """No trial of that sweep can ever have a value."""
    error = WrongMetricError("objective.metric: runs have no a", "launch the sweep again", code="sweep.no-such-metric")
    ended_sweep(SweepReport("4567", error=error), Arguments("", (), 0.0), "sweep")
    assert "resume=" not in capsys.readouterr().err


def test_a_checkpoint_of_replicas_that_differ_is_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    differ = Inconsistent("replicas disagree about the parameters of step 6", code="record.two-ways")
    ended_run("0123", RunOutcome(error=differ, checkpoint=7), Arguments("", (), 0.0))
    told = capsys.readouterr().err
    assert "start it anew: the checkpoint of step 7 may hold parts of replicas that differ" in told
    assert "resume=" not in told


def test_times_and_rates() -> None:
    report = RunOutcome(steps=11, first_step_at=105.0, steps_per_s=5.00049).as_dict("r", started=100.0)
    assert (report["launch_s"], report["steps_per_s"]) == (5.0, 5.0)


def test_samples_follow_from_steps_where_a_step_has_one_number_of_them() -> None:
    assert RunOutcome(steps_per_s=2.5, step_samples=64).as_dict("r", 0.0)["samples_per_s"] == 160.0
    assert Data(shards=2, batch_size=Steps.constant(64), loaders=0).step_samples == 64
    assert Data(shards=2, batch_size=Steps(((0, 64), (9, 128))), loaders=0).step_samples is None
    assert Data(shards=2, batch_size=Steps.constant(64), loaders=0, local=Span(steps=4)).step_samples is None
    for unknown in (RunOutcome(steps_per_s=2.5), RunOutcome(step_samples=64)):
        assert "samples_per_s" not in unknown.as_dict("r", 0.0)


def test_json_has_no_nan() -> None:
    outcome = RunOutcome(loss=math.nan, metrics={"validation/loss": math.inf})
    text = json.dumps(outcome.as_dict(None, 0.0), allow_nan=False)
    assert json.loads(text)["metrics"] == {"validation/loss": None}


def test_a_run_tells_where_its_time_went_from_the_command_to_the_end() -> None:
    outcome = RunOutcome(first_step_at=124.0, trained_at=127.2).ended(100.0, 133.0)
    assert outcome.spent_sentence == "start 24 s, training 3 s, record 6 s"
    assert RunOutcome().ended(100.0, 133.0).spent_sentence == ""
