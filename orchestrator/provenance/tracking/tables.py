"""Runs read from the tables of MLflow's store where that is a file in SQLite: to import MLflow takes 1.5 s of processor time.

If the tables are of another version than `common.tested_versions.MLFLOW_TABLES` names, or the store is a server, MLflow's
client is asked.
"""

from __future__ import annotations

import math
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from orchestrator.common.tested_versions import MLFLOW_TABLES

_Found = TypeVar("_Found")
_FEW = 100


@dataclass(frozen=True)
class RunRow:
    """A run that is not deleted, of an experiment that is not."""

    run_id: str  # MLflow's
    name: str  # of the run, for people
    experiment: str  # its name
    status: str  # MLflow's, such as FINISHED
    started_ms: int  # milliseconds since 1970
    ended_ms: int | None  # milliseconds since 1970; None while it runs
    settings: Mapping[str, str]  # MLflow's parameters as text, by key
    tags: Mapping[str, str]  # as text, by key
    metrics: Mapping[str, float]  # the last value of each, by key


def runs(database: Path, tag: str, value: str | None = None, run_id: str | None = None) -> list[RunRow] | None:
    """Those that have this tag, with this value if one is given, newest first; None where they are to be asked of MLflow.
    run_id: of the only one that is wanted; None for all."""
    return _read(database, lambda connection: _rows(connection, tag, value, run_id))


class Stage(NamedTuple):
    """MLflow's lifecycle stages, active or deleted, empty where there is no such run."""

    run: str = ""
    experiment: str = ""  # of its experiment
    experiment_id: str = ""


def stage(database: Path, run_id: str) -> Stage | None:
    """The stages of a run and its experiment; None as above."""

    def found(connection: sqlite3.Connection) -> Stage:
        row = connection.execute(
            "select runs.lifecycle_stage, experiments.lifecycle_stage, experiment_id from runs "
            "join experiments using (experiment_id) where run_uuid = ?",
            (run_id,),
        ).fetchone()
        return Stage() if row is None else Stage(*map(str, row))

    return _read(database, found)


def experiment(database: Path, name: str) -> tuple[str, str] | None:
    """The id and MLflow's lifecycle stage of the experiment of this name; None also where there is none."""
    query = "select experiment_id, lifecycle_stage from experiments where name = ?"
    row = _read(database, lambda connection: connection.execute(query, (name,)).fetchone())
    return None if row is None else (str(row[0]), row[1])


def running(database: Path, experiment_id: str, tag: str, value: str) -> dict[str, dict[str, str]] | None:
    """The tags of those of an experiment that say RUNNING and have this one, by run; None as above."""
    return _asked(
        database,
        "select run_uuid, key, value from tags where run_uuid in (select run_uuid from runs join tags using (run_uuid) "
        "where status = 'RUNNING' and lifecycle_stage = 'active' and experiment_id = ? and key = ? and value = ?)",
        (int(experiment_id), tag, value),
    )


def finished(database: Path, experiment_id: str, started_ms: int, target: str, most: int) -> dict[str, set[str]] | None:
    """As `Store.launched_before`; None as above."""
    found = _asked(
        database,
        "select run_uuid, tags.key, tags.value from (select run_uuid, start_time from runs join params using (run_uuid) "
        "where status = 'FINISHED' and lifecycle_stage = 'active' and experiment_id = ? and start_time < ? "
        "and key = 'pipeline.target' and value = ? order by start_time desc, run_uuid limit ?) "
        "join tags using (run_uuid) order by start_time desc, run_uuid",
        (int(experiment_id), started_ms, target, most),
    )
    return None if found is None else {run_id: set(tags) for run_id, tags in found.items()}


def _asked(database: Path, query: str, arguments: tuple[object, ...]) -> dict[str, dict[str, str]] | None:
    """By run, in the order of the query, its tags; None as above."""

    def tags(connection: sqlite3.Connection) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for run_id, key, value in connection.execute(query, arguments):
            found.setdefault(run_id, {})[key] = value
        return found

    return _read(database, tags)


def _read(database: Path, read: Callable[[sqlite3.Connection], _Found]) -> _Found | None:
    """The findings of `read`, all as of one moment; None as above."""
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as connection:
            if not MLFLOW_TABLES.are_in(connection):
                return None
            connection.execute("begin")
            return read(connection)
    except sqlite3.Error:  # MLflow says what is wrong
        return None


def _rows(connection: sqlite3.Connection, tag: str, value: str | None, wanted: str | None) -> list[RunRow]:
    found = connection.execute(
        "select run_uuid, runs.name, experiments.name, status, start_time, end_time from runs "
        "join experiments using (experiment_id) join tags using (run_uuid) "
        "where runs.lifecycle_stage = 'active' and experiments.lifecycle_stage = 'active' "
        "and tags.key = ? and (? is null or tags.value = ?) and (? is null or run_uuid = ?) "
        "order by start_time desc, run_uuid",
        (tag, value, value, wanted, wanted),
    ).fetchall()
    chosen = {row[0] for row in found}
    settings = _by_run(connection, "select run_uuid, key, value from params", chosen)
    tags = _by_run(connection, "select run_uuid, key, value from tags", chosen)
    metrics = _by_run(connection, "select run_uuid, key, iif(is_nan, null, value) from latest_metrics", chosen)
    return [
        RunRow(
            *(run_id, name or "", experiment, status, started, ended),
            *(settings[run_id], tags[run_id]),
            {key: math.nan if each is None else each for key, each in metrics[run_id].items()},
        )
        for run_id, name, experiment, status, started, ended in found
    ]


def _by_run(connection: sqlite3.Connection, query: str, chosen: set[str]) -> dict[str, dict[str, Any]]:
    """Few runs are read by the index of each table, which may have millions of rows."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    of_few = (row for run_id in chosen for row in connection.execute(f"{query} where run_uuid = ?", (run_id,)))
    for run_id, key, value in of_few if len(chosen) <= _FEW else connection.execute(query):
        if run_id in chosen:
            found[run_id][key] = value
    return found
