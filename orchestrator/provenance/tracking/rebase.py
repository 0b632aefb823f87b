"""A store that was copied or moved: MLflow keeps absolute paths of artifacts in its database, which then lead to the old place.

MLflow has no public way to change them, so they are changed in its tables, where these are of the version that was tested
(`common.tested_versions.MLFLOW_TABLES`). Tables of another version are only read, by MLflow's client, and a store whose
artifacts would be looked for elsewhere is refused. Only what this program wrote is changed: locations that end as the
project's own folder does. Run under the store's lock.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

from orchestrator.common.tested_versions import MLFLOW, MLFLOW_TABLES
from orchestrator.errors import ConfigurationError

_COLUMNS = (
    *(("experiments", "artifact_location"), ("runs", "artifact_uri"), ("logged_models", "artifact_location")),
    *(("model_versions", "source"), ("model_versions", "storage_location")),
)
_OWN = "/0"  # ends the location of the experiment that MLflow itself makes, below that of the others


def rebase(database: Path, artifacts: Path, locations: Callable[[], Iterable[str]]) -> None:
    """Have every artifact that lay in another folder of this name found in `artifacts`. locations: of the experiments, as
    MLflow tells them. Raises ConfigurationError where they are elsewhere, and the tables of a version that was not tested."""
    if not database.exists():
        return
    with closing(sqlite3.connect(database, timeout=30)) as connection, connection:
        version = MLFLOW_TABLES.version(connection)
        if version is None:  # it is new
            return
        if version in MLFLOW_TABLES.versions:
            found = connection.execute("select distinct artifact_location from experiments")
            for location in _moved((each for (each,) in found), artifacts):
                _replace(connection, location, artifacts.as_uri())
            return
    elsewhere = [
        place for place in map(_folder, _moved(locations(), artifacts)) if place.resolve() != artifacts.resolve()
    ]
    if elsewhere:
        raise ConfigurationError(
            [
                f"tracking.uri: the store {database} was moved or copied: its artifacts are looked for in {elsewhere[0]}, and "
                f"its tables are of a version that was not tested to be changed ({version})"
            ],
            f"have the old place lead to the new one (ln -s {artifacts} {elsewhere[0]}), or install {MLFLOW.wanted} and begin "
            "with the store as it was",
            code="mlflow.store-moved",
        )


def found_at(location: str, artifacts: Path) -> str:
    """The location as this process finds it, of a file among the store's artifacts. Another process that has opened the store
    may have changed it since: a container sees the folder by another path than its host."""
    tail = f"{_tail(artifacts)}/"
    above, mark, below = location.rpartition(tail)
    return f"{artifacts.as_uri()}/{below}" if mark and above.startswith("file:") else location


def _tail(artifacts: Path) -> str:
    """By which a folder of this name is known at any place."""
    return "/" + "/".join(artifacts.as_uri().split("/")[-2:])


def _moved(locations: Iterable[str], artifacts: Path) -> set[str]:
    """The places of all artifacts that are not this one."""
    ours, tail = artifacts.as_uri(), _tail(artifacts)
    places = {each.removesuffix(_OWN) for each in locations if each.startswith("file:")}
    return {each for each in places if each != ours and each.endswith(tail)}


def _folder(location: str) -> Path:
    return Path(unquote(urlsplit(location).path))


def _replace(connection: sqlite3.Connection, location: str, ours: str) -> None:
    """In the tables of the version that was tested."""
    length = len(location) + 1
    for table, column in _COLUMNS:
        connection.execute(
            f"update {table} set {column} = ? || substr({column}, ?) "
            f"where {column} = ? or substr({column}, 1, ?) = ? || '/'",
            (ours, length, location, length, location),
        )
