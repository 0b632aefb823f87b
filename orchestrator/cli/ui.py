"""`ui`: the runs of this project in a browser, with MLflow's own pages, until Ctrl-C."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import CommandResult
from orchestrator.driver.folders import NAME, project_folder
from orchestrator.driver.terminal import mlflow_ui
from orchestrator.errors import RunFailed, UsageError
from orchestrator.experiments.listing import runs
from orchestrator.provenance.tracking import Store, experiment_page, is_server, is_there
from orchestrator.records import redaction


def run(arguments: Arguments) -> CommandResult:
    port = arguments.get("port")
    if port is not None and not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise UsageError(f"port={port}: expected a number from 1 to 65535", code="mlflow.port")
    return CommandResult(ui(Path.cwd(), None if port is None else int(port), arguments.uri))


def ui(project: Path, port: int | None, uri: str | None = None) -> int:
    """Serve the pages of the project's own store, or of the store `uri`, and say where; the exit code, when they were ended.

    port: None for a free one. Raises UsageError, ConfigurationError, RunFailed when the server does not start or does not stay.
    """
    if uri is not None and is_server(uri):
        named = redaction.text(uri)
        raise UsageError(
            f"{named} is an MLflow server, which shows its runs itself",
            f"open {named} in a browser",
            code="mlflow.is-server",
        )
    if uri is None and not is_there(project / NAME / "mlflow.db"):
        raise UsageError(f"there are no runs in {project}", "launch one with conf=NAME", code="mlflow.no-runs")
    runs(project, uri, lambda said: print(said, file=sys.stderr))  # what MLflow lacks it is told before it shows it
    store = Store(uri, project_folder(project))
    port = mlflow_ui.free_port(port)
    address = f"http://127.0.0.1:{port}"
    experiment_id = store.newest_experiment()
    with tempfile.TemporaryFile() as log, mlflow_ui.serving(store.uri, port, log) as server:
        try:
            mlflow_ui.wait_for(server, address, log)
            # The address comes last: what follows it sticks to it where it is copied, and leads to another page.
            print(f"the runs are shown, until Ctrl-C, at {experiment_page(address, experiment_id)}", flush=True)
            server.wait()
        except KeyboardInterrupt:
            return 0
        raise RunFailed(
            f"the MLflow server ended by itself (exit code {server.returncode})",
            mlflow_ui.last_words(log),
            code="mlflow.server-ended",
        )
