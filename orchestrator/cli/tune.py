"""`tune conf=...`: measure, predict and choose what of the layout is left open."""

from __future__ import annotations

from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import CommandResult, reported
from orchestrator.experiments.tuning.choosing import tune


def run(arguments: Arguments) -> CommandResult:
    return reported(tune(arguments.settings, trusted=arguments.flag("trust")), arguments)
