"""`resume=RUN_ID [trust=true] [key=value ...]`: go on with a run, a sweep or an ensemble."""

from __future__ import annotations

from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import CommandResult, ended_run
from orchestrator.cli.sweep import ended_sweep
from orchestrator.experiments.resume import resume
from orchestrator.experiments.sweep.report import SweepReport


def run(arguments: Arguments) -> CommandResult:
    overrides, trusted = arguments.without("trust"), arguments.flag("trust")
    done = resume(arguments.value, overrides, arguments.uri, arguments.rest, trusted=trusted)
    if isinstance(done.ended, SweepReport):
        return ended_sweep(done.ended, arguments, done.kind)
    return ended_run(done.id, done.ended, arguments)
