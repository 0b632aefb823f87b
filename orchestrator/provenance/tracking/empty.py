"""The tables of a new database, which MLflow makes by repeating all changes of its history: 1.5 s of processor time.

The first new store on a machine is made so. An empty database is kept for the next ones, under a name that changes with the
versions of MLflow, SQLAlchemy and Alembic. With versions of MLflow that this was not tried with
(`common.tested_versions.MLFLOW`) each is made anew. One that was kept gets MLflow's default experiment, and is like any other
database then.
"""

from __future__ import annotations

import importlib.metadata
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from orchestrator.common import file_cache, tested_versions

_MAKERS = ("mlflow", "sqlalchemy", "alembic")


def place(database: Path, artifacts: str) -> bool:
    """Put what is kept where a new database shall be; whether there was something to put. To be called under the store's
    lock. artifacts: of all runs. Raises OSError, sqlite3.Error."""
    tables = file_cache.read(_folders(), _name()) if tested_versions.MLFLOW.is_here else None
    if tables is None:
        return False
    unfinished = database.with_name(f"{database.name}.unfinished")
    unfinished.write_bytes(tables)
    _begin(unfinished, artifacts)
    unfinished.replace(database)
    return True


def _begin(database: Path, artifacts: str) -> None:
    """The experiment that MLflow makes in each new store. Raises sqlite3.Error."""
    with closing(sqlite3.connect(database)) as connection, connection:
        put_experiment(connection, "Default", f"{artifacts}/0", 0)


def put_experiment(connection: sqlite3.Connection, name: str, artifacts: str, number: int | None = None) -> int:
    """Add an experiment, as MLflow does, by this number or the next one; returns its number. Raises sqlite3.Error."""
    now = int(time.time() * 1000)
    made = connection.execute(
        "insert into experiments (experiment_id, name, artifact_location, lifecycle_stage, creation_time, "
        "last_update_time, workspace) values (?, ?, ?, 'active', ?, ?, 'default')",
        (number, name, artifacts, now, now),
    )
    return int(made.lastrowid or 0)


def keep(database: Path) -> None:
    """Keep what MLflow has just made, without its default experiment, whose place is that of this store. If no folder takes
    it, nothing is kept."""
    if not tested_versions.MLFLOW.is_here:
        return
    try:
        with closing(sqlite3.connect(":memory:")) as copy:
            with closing(sqlite3.connect(database, timeout=30)) as connection:
                connection.backup(copy)
            with copy:
                copy.execute("delete from experiments")
            copy.execute("vacuum")
            tables = copy.serialize()
    except sqlite3.Error:  # the store itself is made
        return
    file_cache.keep(_folders(), _name(), tables)


def _folders() -> Iterator[Path]:
    return file_cache.folders(__file__)


def _name() -> str:
    return "-".join(["mlflow", *(importlib.metadata.version(name) for name in _MAKERS)]) + ".db"
