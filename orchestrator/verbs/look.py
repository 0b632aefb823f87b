"""`look=RUN_ID`: what the servers of a running run hold of a parameter."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.errors import UsageError
from orchestrator.verbs.verb import Answer, Arguments, Verb


def _run(given: Arguments) -> Answer:
    given.only("look", "parameter", "first", "count", "tracking.uri")
    from orchestrator.commands.look import look

    first, count = _number(given, "first", 0), _number(given, "count", 1)
    seen = look(given.value, given.get("parameter"), first=first or 0, count=count, uri=given.get("tracking.uri"))
    return Answer(stdout=json.dumps(seen.as_dict()) if given.as_json else seen.as_text())


def _number(given: Arguments, key: str, least: int) -> int | None:
    """Raises UsageError."""
    found = given.get(key)
    if found is not None and not (found.isascii() and found.isdigit() and int(found) >= least):
        raise UsageError(f"{key}={found}: expected a whole number, at least {least}")
    return None if found is None else int(found)


def _refused(given: Arguments) -> dict[str, Any]:  # noqa: ARG001
    return {"run_id": None, "parameter": None, "values": None, "slices": []}


VERB = Verb(
    forms=("look=RUN_ID [parameter=NAME] [first=N] [count=N]",),
    about=(
        (
            "look=RUN_ID",
            "while that run goes on with topology=parameter_server and sync=ssp, asp or bap: what its servers hold\n"
            "of a parameter, exactly, and the updates that are in it; without parameter= which there are",
        ),
    ),
    run=_run,
    refused=_refused,
)
