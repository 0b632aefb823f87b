"""Whether a store can be used, asked without writing into it: before a launch starts anything, and for a plan, which leaves
nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.errors import ConfigurationError
from orchestrator.provenance.tracking import store_errors, tables
from orchestrator.provenance.tracking.addresses import absolute, database_of, default_uri, is_server
from orchestrator.provenance.tracking.health import is_open
from orchestrator.provenance.tracking.store import client_of
from orchestrator.records import redaction


def ask(uri: str | None) -> None:
    """Raises ConfigurationError as a launch does. uri: as `tracking.uri` gives it; None for the project's own store. Databases
    other than SQLite's are not asked: MLflow makes their tables as it opens them."""
    if uri is None or (is_server(uri) and is_open(uri)):
        return
    place = absolute(uri)
    database = database_of(place)
    if is_server(uri):
        client_of(place)
    elif database is not None and not os.access(database.parent, os.W_OK | os.X_OK):
        raise ConfigurationError(
            [
                f"tracking.uri: the MLflow store {redaction.text(place)} cannot be used: "
                f"{database.parent} is no folder that can be written"
            ],
            "see to its place, or leave tracking.uri out for the project's own store",
            code="mlflow.no-folder",
        )


def refuse_deleted(uri: str | None, folder: Path, experiment: str) -> None:
    """Raises ConfigurationError where this experiment was deleted in a store that is a file in SQLite; no other is asked.
    uri: as above; folder: of the project, where its own store is."""
    place = absolute(uri) if uri else default_uri(folder)
    database = database_of(place)
    found = None if database is None else tables.experiment(database, experiment)
    if found is not None and found[1] == "deleted":
        raise store_errors.experiment_deleted(place, experiment, found[0])
