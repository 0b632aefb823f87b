"""`ui`: the runs in a browser."""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.verbs import ended
from orchestrator.verbs.verb import Answer, Arguments, Verb


def _run(given: Arguments) -> Answer:
    given.only("ui", "port", "tracking.uri", output=False)
    port = given.get("port")
    if port is not None and not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise UsageError(f"port={port}: expected a number from 1 to 65535")
    from orchestrator.commands.ui import ui

    return Answer(ui(Path.cwd(), None if port is None else int(port), given.get("tracking.uri")))


VERB = Verb(
    forms=("ui [port=N] [tracking.uri=URI]",),
    about=(("ui", "show them in a browser, with MLflow's pages, until Ctrl-C; on a free port unless port=N"),),
    run=_run,
    refused=ended.nothing,
    speaks=True,
)
