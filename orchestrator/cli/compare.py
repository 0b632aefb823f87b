"""`compare=RUN_A,RUN_B`: what differs between two runs, the most consequential first."""

from __future__ import annotations

from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import CommandResult, reported
from orchestrator.experiments.compare import compare


def run(arguments: Arguments) -> CommandResult:
    return reported(compare(arguments.value, arguments.uri), arguments)
