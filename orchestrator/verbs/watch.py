"""`watch=RUN_ID`: the progress of a run that goes on elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.verbs import ended
from orchestrator.verbs.verb import Answer, Arguments, Verb


def _run(given: Arguments) -> Answer:
    given.only("watch", "tracking.uri")
    from orchestrator.commands.watch import watch

    watched = watch(Path.cwd(), given.value, given.get("tracking.uri"))
    return Answer(watched.exit_code, json.dumps(watched.as_dict()) if given.as_json else None)


VERB = Verb(
    forms=("watch=RUN_ID",),
    about=(
        (
            "watch=RUN_ID",
            "show the progress of a run that goes on in another terminal, until it ends or Ctrl-C, which leaves the\n"
            "run alone",
        ),
    ),
    run=_run,
    refused=ended.nothing,
)
