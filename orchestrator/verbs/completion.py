"""`completion=bash|zsh|fish`: what the shell needs to complete verbs, keys, names and runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from orchestrator.verbs.verb import Answer, Arguments, Verb


def verb(others: Iterable[str]) -> Verb:
    """others: the other verbs by name."""
    verbs = (*others, "completion")

    def run(given: Arguments) -> Answer:
        from orchestrator.commands import completion

        if given.value == "words":  # what the shell calls, with the word that is being typed behind it
            typed = given.rest[0] if given.rest else ""
            return Answer(stdout="\n".join(completion.words(typed, verbs, Path.cwd())))
        given.only("completion", output=False)
        return Answer(stdout=completion.script(given.value))

    about = "a script for that shell, which then completes verbs, settings and runs:\n"
    how = 'eval "$(python -m orchestrator completion=bash)"'
    return Verb(forms=("completion=bash|zsh|fish",), about=(("completion=SHELL", about + how),), run=run)
