"""`rerun=RUN_ID|CRATE [key=value ...]`: repeat a run exactly, and compare."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from orchestrator.errors import UsageError
from orchestrator.verbs import sweep
from orchestrator.verbs.verb import Answer, Arguments, Verb

_ENVIRONMENTS = ("check", "ignore", "rebuild")


def _run(given: Arguments) -> Answer:
    environment = _environment(given)
    check, rebuilding = environment != "ignore", environment == "rebuild"
    explaining, trusted = (given.choice(key, "false", "true") == "true" for key in ("explain", "trust"))
    key, wheels = given.get("key"), given.get("wheels")
    if wheels is not None and not rebuilding:
        raise UsageError("wheels= names a folder of wheels for environment=rebuild, which is not asked for", "add it")
    from orchestrator.commands.rerun import Wanted, rerun
    from orchestrator.commands.sweep_rerun import rerun_sweep
    from orchestrator.driver.sweep.record import find_sweep
    from orchestrator.provenance.crates import crate

    uri = given.get("tracking.uri")
    past = None if crate.is_crate(given.value) or key is not None else find_sweep(given.value, uri)
    if past is not None:
        if explaining:
            raise UsageError("explain=true: a sweep has many runs", "name the one of its trials that has diverged")
        if rebuilding:
            raise UsageError("environment=rebuild: a sweep has many runs", "name one of its trials")
        return sweep.report_rerun(rerun_sweep(past, list(given.rest), uri, check_environment=check), given.as_json)
    places = [None if place is None else Path(place) for place in (key, wheels)]
    wanted = Wanted(check, explaining, trusted, places[0], rebuilding, places[1])
    done = rerun(given.value, list(given.rest), uri, wanted)
    if done.verdict is not None:
        print(f"run {done.run_id} repeats run {done.rerun_of}\n{done.text}", file=sys.stderr)
    if done.error is not None:
        whose = "" if done.verdict is not None else f"the repetition of run {done.rerun_of} failed: "
        print(f"error: {whose}{done.error}", file=sys.stderr)
    return Answer(done.exit_code, json.dumps(done.as_dict()) if given.as_json else None)


def _environment(given: Arguments) -> str:
    """Raises UsageError."""
    found = given.get("environment") or _ENVIRONMENTS[0]
    if found not in _ENVIRONMENTS:
        raise UsageError(f"environment={found}: it is {', '.join(_ENVIRONMENTS[:-1])} or {_ENVIRONMENTS[-1]}")
    return found


def _refused(given: Arguments) -> dict[str, Any]:
    from orchestrator.commands.rerun import Rerun

    return Rerun(None, given.value, None).as_dict()


VERB = Verb(
    forms=("rerun=RUN_ID|CRATE [environment=ignore|rebuild] [explain=true] [trust=true] [key=value ...]",),
    about=(
        (
            "rerun=RUN_ID",
            "repeat that run exactly, in a clean checkout of its code with its data, and compare: exact, diverged\n"
            "(with the first step that differs), or inputs-differ (with what differs); explain=true: where it has\n"
            "diverged, run that step once more, to tell chance within it from other causes;\n"
            "environment=rebuild: in a new virtual environment with the recorded packages and interpreter, which pip\n"
            "installs; wheels=FOLDER: wheels for it, besides pip's index",
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
