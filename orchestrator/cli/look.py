"""`look=RUN_ID [parameter=NAME]`: what the servers of a running run hold of its parameters."""

from __future__ import annotations

from orchestrator.cli.answer import Answer, reported
from orchestrator.cli.arguments import Arguments
from orchestrator.experiments.look import look


def run(given: Arguments) -> Answer:
    first, count = given.number("first", 0), given.number("count", 1)
    return reported(look(given.value, given.get("parameter"), first=first or 0, count=count, uri=given.uri), given)
