"""A store that was copied or moved: MLflow keeps absolute paths of artifacts in its database, which then lead to the old place.

Only what this program wrote is changed: locations that end as the project's own folder does. Run under the store's lock.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

_COLUMNS = (
    *(("experiments", "artifact_location"), ("runs", "artifact_uri"), ("logged_models", "artifact_location")),
    *(("model_versions", "source"), ("model_versions", "storage_location")),
)


def rebase(database: Path, artifacts: Path) -> bool:
    """Have every artifact that lay in another folder of this name found in `artifacts`; whether anything had to be changed."""
    if not database.exists():
        return False
    ours = artifacts.as_uri()
    tail = "/" + "/".join(ours.split("/")[-2:])
    with closing(sqlite3.connect(database, timeout=30)) as connection, connection:
        tables = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
        if not tables.issuperset(table for table, _ in _COLUMNS):  # it is new
            return False
        found = connection.execute(
            "select distinct artifact_location from experiments where artifact_location like 'file:%'"
        )
        moved = [location for (location,) in found if location != ours and location.endswith(tail)]
        for location in moved:
            length = len(location) + 1
            for table, column in _COLUMNS:
                connection.execute(
                    f"update {table} set {column} = ? || substr({column}, ?) "
                    f"where {column} = ? or substr({column}, 1, ?) = ? || '/'",
                    (ours, length, location, length, location),
                )
    return bool(moved)


def adopt(database: Path, artifacts: Path) -> None:
    """Have the experiment that MLflow itself makes in a new store keep its artifacts as the others do."""
    with closing(sqlite3.connect(database, timeout=30)) as connection, connection:
        connection.execute(
            "update experiments set artifact_location = ? where experiment_id = 0", (artifacts.as_uri(),)
        )
