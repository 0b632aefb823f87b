"""`rerun=RUN_ID [key=value ...]`: repeat a run exactly, and compare."""

from __future__ import annotations

import json
import sys
from typing import Any

from orchestrator.verbs.verb import Answer, Arguments, Verb


def _run(given: Arguments) -> Answer:
    check = given.choice("environment", "check", "ignore") == "check"
    explaining = given.choice("explain", "false", "true") == "true"
    from orchestrator.commands.rerun import rerun

    uri = given.get("tracking.uri")
    done = rerun(given.value, list(given.rest), uri, check_environment=check, explaining=explaining)
    if done.verdict is not None:
        print(f"run {done.run_id} repeats run {done.rerun_of}\n{done.text}", file=sys.stderr)
    if done.error is not None:
        whose = "" if done.verdict is not None else f"the repetition of run {done.rerun_of} failed: "
        print(f"error: {whose}{done.error}", file=sys.stderr)
    return Answer(done.exit_code, json.dumps(done.as_dict()) if given.as_json else None)


def _refused(given: Arguments) -> dict[str, Any]:
    from orchestrator.commands.rerun import Rerun

    return Rerun(None, given.value, None).as_dict()


VERB = Verb(
    forms=("rerun=RUN_ID [environment=ignore] [explain=true] [key=value ...]",),
    about=(
        (
            "rerun=RUN_ID",
            "repeat that run exactly, in a clean checkout of its code with its data, and compare: exact, diverged\n"
            "(with the first step that differs), or inputs-differ (with what differs); explain=true: where it has\n"
            "diverged, run that step once more, to tell chance within it from other causes",
        ),
        (
            "replay=FILE",
            "with conf=: an asynchronous run takes the order of its updates from there, the rests.jsonl of another\n"
            "run; rerun= does so by itself",
        ),
    ),
    run=_run,
    refused=_refused,
)
