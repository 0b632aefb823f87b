"""`help=KEY`: what a setting is, or all settings of a section."""

from __future__ import annotations

from orchestrator.settings import described
from orchestrator.verbs.verb import Answer, Arguments, Verb


def _run(given: Arguments) -> Answer:
    given.only("help", output=False)
    return Answer(stdout=described(given.value))


VERB = Verb(
    forms=("help=KEY",),
    about=(
        ("help=KEY", "what a setting is, what it may be and its default; of a section, such as optimizer: all in it"),
    ),
    run=_run,
)
