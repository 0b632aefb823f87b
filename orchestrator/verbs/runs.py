"""`runs`: the runs of this project."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from orchestrator.verbs import ended
from orchestrator.verbs.verb import Answer, Arguments, Verb

_KEYS = ("tracking.uri", "where", "columns")


def _run(given: Arguments) -> Answer:
    given.only("runs", *_KEYS)
    from orchestrator.commands.runs import columns, runs, selected, table

    shown = columns(given.get("columns"))
    found = selected(runs(Path.cwd(), given.get("tracking.uri"), _note), given.get("where"))
    return Answer(
        stdout=json.dumps({"runs": [asdict(past) for past in found]}) if given.as_json else table(found, shown)
    )


def _note(sentence: str) -> None:
    print(sentence, file=sys.stderr)


VERB = Verb(
    forms=("runs [where=CONDITION,...] [columns=NAME,...] [output=json] [tracking.uri=URI]",),
    about=(
        (
            "runs",
            "list the runs of this project, newest first; where=status=finished,optimizer.lr<0.01: those of which\n"
            "that is true; columns=run,optimizer.lr,validation/loss: what is shown; tracking.uri: of that MLflow store",
        ),
    ),
    run=_run,
    refused=ended.nothing,
)
