"""The result of a command: an exit code, and the text for stdout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.cli.arguments import Arguments
from orchestrator.driver.report.outcome import RunOutcome
from orchestrator.driver.terminal import console
from orchestrator.errors import REPLICAS_DIFFERED, OrchestratorError, ending
from orchestrator.provenance.tracking import as_argument


@dataclass(frozen=True)
class CommandResult:
    """The result of a command. code: of the exit; stdout: what is written there, None for nothing."""

    code: int = 0
    stdout: str | None = None


class Report(Protocol):
    """The findings of a command."""

    def as_dict(self) -> dict[str, Any]: ...

    def as_text(self) -> str: ...


def reported(report: Report, arguments: Arguments, code: int = 0) -> CommandResult:
    """As output= asks for it."""
    return CommandResult(code, json.dumps(report.as_dict()) if arguments.as_json else report.as_text())


def ended(code: int, report: Mapping[str, Any], arguments: Arguments) -> CommandResult:
    """The result for a run that said on stderr how it ended: stdout is for programs alone."""
    return CommandResult(code, json.dumps(report) if arguments.as_json else None)


def ended_run(run_id: str, outcome: RunOutcome, arguments: Arguments) -> CommandResult:
    """Say how a run ended that was launched or gone on with."""
    if outcome.error is not None:
        console.tell(f"error: {outcome.error}\n  run {run_id}, its files in .orchestrator/{run_id}/")
        if outcome.checkpoint is not None and outcome.error.code == REPLICAS_DIFFERED:
            console.tell(
                f"  start it anew: the checkpoint of step {outcome.checkpoint} may hold parts of replicas that differ"
            )
        elif outcome.head_goes_on:
            console.tell(
                "  the head of that Ray goes on with the run, once it holds this node for dead; there "
                f"~/.orchestrator-standby/{run_id}.log has its output"
            )
        elif outcome.checkpoint is not None and not outcome.recurs and arguments.get("segments") is None:  # of an audit
            where = as_argument(outcome.store)
            console.tell(f"  go on from step {outcome.checkpoint}: python -m orchestrator resume={run_id}{where}")
    return ended(code_of(outcome.error), outcome.as_dict(run_id, arguments.started), arguments)


def code_of(error: OrchestratorError | None) -> int:
    return 0 if error is None else error.exit_code


def refused(error: OrchestratorError, report: Mapping[str, Any]) -> str:
    """The JSON object of a command that came to nothing."""
    return json.dumps({**report, **error.more, **ending(error)})
