"""`runs`: the runs of this project, newest first, all or those of which conditions are true."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import CommandResult
from orchestrator.driver.terminal import console
from orchestrator.experiments.listing import columns, runs, selected, table


def run(arguments: Arguments) -> CommandResult:
    found = selected(runs(Path.cwd(), arguments.uri, _note), arguments.get("where"))
    if arguments.as_json:
        return CommandResult(stdout=json.dumps({"runs": [asdict(past) for past in found]}))
    return CommandResult(stdout=table(found, columns(arguments.get("columns"))))


def _note(sentence: str) -> None:
    console.tell(sentence)
