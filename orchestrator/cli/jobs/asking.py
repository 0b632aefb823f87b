"""`status=ID`, `logs=ID` and `stop=ID`: the Ray asked that a job was submitted to."""

from __future__ import annotations

import json

from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import CommandResult
from orchestrator.cli.jobs.submit import where


def status(arguments: Arguments) -> CommandResult:
    name, message = where(arguments.value, arguments.get("to")).status(arguments.value)
    if arguments.as_json:
        return CommandResult(stdout=json.dumps({"id": arguments.value, "status": name, "message": message}))
    return CommandResult(stdout=f"{name}: {message}" if message else name)


def logs(arguments: Arguments) -> CommandResult:
    return CommandResult(stdout=where(arguments.value, arguments.get("to")).logs(arguments.value).rstrip())


def stop(arguments: Arguments) -> CommandResult:
    stopped = where(arguments.value, arguments.get("to")).stop(arguments.value)
    answer = "it ends now, with a checkpoint" if stopped else "it had ended"
    return CommandResult(
        stdout=json.dumps({"id": arguments.value, "stopped": stopped}) if arguments.as_json else answer
    )
