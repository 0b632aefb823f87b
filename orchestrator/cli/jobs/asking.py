"""`status=ID`, `logs=ID` and `stop=ID`: the Ray asked that a job was submitted to."""

from __future__ import annotations

import json

from orchestrator.cli.answer import Answer
from orchestrator.cli.arguments import Arguments
from orchestrator.cli.jobs.submit import where


def status(given: Arguments) -> Answer:
    name, message = where(given.value, given.get("to")).status(given.value)
    if given.as_json:
        return Answer(stdout=json.dumps({"id": given.value, "status": name, "message": message}))
    return Answer(stdout=f"{name}: {message}" if message else name)


def logs(given: Arguments) -> Answer:
    return Answer(stdout=where(given.value, given.get("to")).logs(given.value).rstrip())


def stop(given: Arguments) -> Answer:
    stopped = where(given.value, given.get("to")).stop(given.value)
    told = "it ends now, with a checkpoint" if stopped else "it had ended"
    return Answer(stdout=json.dumps({"id": given.value, "stopped": stopped}) if given.as_json else told)
