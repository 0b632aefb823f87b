"""`export=RUN_ID to=PATH`: the record of a run as one file or folder that can be rerun elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.errors import UsageError
from orchestrator.verbs.verb import Answer, Arguments, Verb


def _run(given: Arguments) -> Answer:
    given.only("export", "to", "data", "wheels", "key", "license", "tracking.uri")
    to, key = given.get("to"), given.get("key")
    with_data = given.choice("data", "false", "true") == "true"
    if to is None:
        raise UsageError("export needs a place: to=FOLDER or to=FILE.zip")
    from orchestrator.commands.export import Wanted, export

    places = [None if place is None else Path(place) for place in (key, given.get("wheels"))]
    wanted = Wanted(Path(to), with_data, places[0], given.get("license"), places[1])
    exported = export(given.value, wanted, given.get("tracking.uri"))
    return Answer(stdout=json.dumps(exported.as_dict()) if given.as_json else exported.text)


def _refused(given: Arguments) -> dict[str, Any]:
    return {"run_id": None, "to": given.get("to")}


VERB = Verb(
    forms=("export=RUN_ID to=FOLDER|ZIP [data=true] [wheels=FOLDER] [key=PATH] [license=URL]",),
    about=(
        (
            "export=RUN_ID",
            "write the record into the folder or zip `to`: code, settings, environment, trace, journal, verdicts, the\n"
            "weights that the run began with, and with data=true the data; wheels=FOLDER: the wheels of its packages that\n"
            "are in there, too; signed with the ed25519 key of key=PATH",
        ),
    ),
    run=_run,
    refused=_refused,
)
