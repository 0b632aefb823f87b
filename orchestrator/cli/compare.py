"""`compare=RUN_A,RUN_B`: what differs between two runs, the most consequential first."""

from __future__ import annotations

from orchestrator.cli.answer import Answer, reported
from orchestrator.cli.arguments import Arguments
from orchestrator.experiments.compare import compare


def run(arguments: Arguments) -> Answer:
    return reported(compare(arguments.value, arguments.uri), arguments)
