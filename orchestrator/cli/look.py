"""`look=RUN_ID [parameter=NAME]`: what the servers of a running run hold of its parameters."""

from __future__ import annotations

from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import CommandResult, reported
from orchestrator.experiments.look import look


def run(arguments: Arguments) -> CommandResult:
    first, count = arguments.number("first", 0), arguments.number("count", 1)
    return reported(
        look(arguments.value, arguments.get("parameter"), first=first or 0, count=count, uri=arguments.uri), arguments
    )
