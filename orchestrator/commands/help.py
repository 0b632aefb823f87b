"""`help=KEY`: what a setting is, or all settings of a section."""

from __future__ import annotations

from orchestrator.commands.answer import Answer
from orchestrator.commands.arguments import Arguments
from orchestrator.settings import described


def run(given: Arguments) -> Answer:
    return Answer(stdout=described(given.value))
