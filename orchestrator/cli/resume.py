"""`resume=RUN_ID [trust=true] [key=value ...]`: go on with a run, a sweep or an ensemble."""

from __future__ import annotations

import time
from collections.abc import Callable

from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import CommandResult, ended_run
from orchestrator.cli.sweep import ended_sweep
from orchestrator.driver.supervision import taken_over
from orchestrator.driver.terminal import console
from orchestrator.errors import ConfigurationError, OrchestratorError
from orchestrator.experiments.resume import Resumed, resume
from orchestrator.experiments.sweep.report import SweepReport
from orchestrator.provenance.tracking import is_server

# The driver before has used these places: they are away, or full.
_OF_PLACES = {"mlflow.unusable", "checkpoint.place-unwritable", "checkpoint.not-listed", "checkpoint.not-read"}
_OF_SERVER = {"mlflow.denied"}
_AGAIN_S = 5.0


def run(arguments: Arguments) -> CommandResult:
    overrides, trusted = arguments.without("trust"), arguments.flag("trust")
    done = _when_its_places_answer(
        arguments.uri,
        lambda: resume(arguments.value, overrides, arguments.uri, arguments.rest, trusted=trusted),
    )
    if isinstance(done.ended, SweepReport):
        return ended_sweep(done.ended, arguments, done.kind)
    return ended_run(done.id, done.ended, arguments)


def _when_its_places_answer(uri: str | None, go_on: Callable[[], Resumed]) -> Resumed:
    """A run whose driver has died is not left because its MLflow store, or that of its checkpoints, is away or full at that
    moment, too. Raises as `resume`."""
    passing = _OF_PLACES | (_OF_SERVER if is_server(uri) else set())
    is_told = False
    while True:
        try:
            return go_on()
        except OrchestratorError as error:
            if taken_over() is None or not set(error.codes) <= passing:
                raise
            why = error.problems[0] if isinstance(error, ConfigurationError) else error.message
            if not is_told:
                console.tell(f"{why}; the run goes on as soon as it can, which is tried every {_AGAIN_S:.0f} s")
            is_told = True
        time.sleep(_AGAIN_S)
