"""`compare=RUN_A,RUN_B`: what differs."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.verbs.verb import Answer, Arguments, Verb


def _run(given: Arguments) -> Answer:
    given.only("compare", "tracking.uri")
    from orchestrator.commands.compare import compare

    compared = compare(given.value, given.get("tracking.uri"))
    return Answer(stdout=json.dumps(compared.as_dict()) if given.as_json else compared.as_text())


def _refused(given: Arguments) -> dict[str, Any]:
    nothing: dict[str, Any] = {
        "differences": [],
        "first_divergence": None,
        "files": [],
        "ancestor": None,
        "drift": None,
        "picture": None,
    }
    return {"runs": given.value.split(","), **nothing}


VERB = Verb(
    forms=("compare=RUN_A,RUN_B",),
    about=(
        (
            "compare=A,B",
            "what differs between two runs: code, data and their drift, settings, environment, the first step",
        ),
    ),
    run=_run,
    refused=_refused,
)
