"""`sweep=NAME|PATH [key=value ...]` and `ensemble=NAME|PATH [key=value ...]`."""

from __future__ import annotations

from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import CommandResult, code_of, ended
from orchestrator.driver.terminal import console
from orchestrator.experiments.sweep.report import SweepReport
from orchestrator.experiments.sweep.sweep import sweep
from orchestrator.provenance.tracking import as_argument
from orchestrator.records import redaction


def run(arguments: Arguments) -> CommandResult:
    return ended_sweep(
        sweep(arguments.value, arguments.without("trust"), trusted=arguments.flag("trust")), arguments, "sweep"
    )


def ensemble(arguments: Arguments) -> CommandResult:
    done = sweep(arguments.value, arguments.without("trust"), "ensemble", trusted=arguments.flag("trust"))
    return ended_sweep(done, arguments, "ensemble")


def ended_sweep(report: SweepReport, arguments: Arguments, kind: str) -> CommandResult:
    """Say how a sweep or an ensemble (`kind`) ended that was launched or gone on with."""
    if report.error is not None:
        console.tell(f"error: {report.error}\n  {kind} {report.sweep_id}")
        where = as_argument(None if report.uri is None else redaction.text(report.uri))
        if not report.error.recurs:
            console.tell(f"  go on: python -m orchestrator resume={report.sweep_id}{where}")
    return ended(code_of(report.error), report.as_dict(), arguments)
