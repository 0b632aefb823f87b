"""`doctor`: what this processor computes otherwise than others."""

from __future__ import annotations

import json

from orchestrator.numerics import determinism
from orchestrator.verbs.verb import Answer, Arguments, Verb


def _run(given: Arguments) -> Answer:
    given.only("doctor")
    with determinism.environment_of("portable"):
        from orchestrator.commands.doctor import doctor  # loads torch, which reads the environment

        found = doctor()
    return Answer(found.exit_code, json.dumps(found.as_dict()) if given.as_json else found.as_text())


VERB = Verb(
    forms=("doctor [output=json]",),
    about=(
        (
            "doctor",
            "compute the page of operators here, and name each one that this processor computes otherwise than\n"
            "others (see run.arithmetic=portable); exit code 3 when there is one",
        ),
    ),
    run=_run,
)
