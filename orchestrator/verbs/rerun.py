"""`rerun=RUN_ID|CRATE [key=value ...]`: repeat a run exactly, and compare."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from orchestrator.errors import UsageError
from orchestrator.verbs import sweep
from orchestrator.verbs.verb import Answer, Arguments, Verb


def _run(given: Arguments) -> Answer:
    check = given.choice("environment", "check", "ignore") == "check"
    explaining, trusted = (given.choice(key, "false", "true") == "true" for key in ("explain", "trust"))
    key = given.get("key")
    from orchestrator.commands.rerun import Wanted, rerun
    from orchestrator.commands.sweep_rerun import rerun_sweep
    from orchestrator.driver.sweep.record import find_sweep
    from orchestrator.provenance.crates import crate

    uri = given.get("tracking.uri")
    past = None if crate.is_crate(given.value) or key is not None else find_sweep(given.value, uri)
    if past is not None:
        if explaining:
            raise UsageError("explain=true: a sweep has many runs", "name the one of its trials that has diverged")
        return sweep.report_rerun(rerun_sweep(past, list(given.rest), uri, check_environment=check), given.as_json)
    wanted = Wanted(check, explaining, trusted, None if key is None else Path(key))
    done = rerun(given.value, list(given.rest), uri, wanted)
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
    forms=("rerun=RUN_ID|CRATE [environment=ignore] [explain=true] [trust=true] [key=value ...]",),
    about=(
        (
            "rerun=RUN_ID",
            "repeat that run exactly, in a clean checkout of its code with its data, and compare: exact, diverged\n"
            "(with the first step that differs), or inputs-differ (with what differs); explain=true: where it has\n"
            "diverged, run that step once more, to tell chance within it from other causes",
        ),
        (
            "rerun=CRATE",
            "the same with a record that was sent, a zip or folder of export=; key=PATH: the public key that has to\n"
            "have signed it; trust=true: execute a record of somebody else, after saying what that would be",
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
