"""The part of MLflow's client that a launch needs, on the tables of a store in SQLite: to import MLflow with its SQLAlchemy
takes 2 s of processor time, and each of its requests some milliseconds.

It writes what the client of `common.tested_versions.MLFLOW` writes, and a test compares all rows of both. With other versions
of MLflow or its tables there is no such client. A value that is too long, a run that was deleted and the like are left to
MLflow's client, which is opened then and says what is wrong. A database that is locked is not: that client would wait
once more.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import shutil
import sqlite3
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import unquote, urlsplit

import yaml

from orchestrator.common import temporary
from orchestrator.common.tested_versions import MLFLOW, MLFLOW_TABLES
from orchestrator.provenance.tracking import empty, names, rebase
from orchestrator.provenance.tracking.client import PATIENCE_S, Client, Dataset, Metric, ModelOfRun, Param, RunTag

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_MOST_OF_PARAM, _MOST_OF_TAG, _MOST_OF_INPUT = 6000, 8000, 36
_MOST_OF_NAME = 250  # of runs and experiments
_NAME = "mlflow.runName"
_READY, _PENDING = 2, 1
_LARGE = ".safetensors"
# Variables by which MLflow would do otherwise.
_OTHERWISE = ("MLFLOW_ENABLE_WORKSPACES", "MLFLOW_WORKSPACE", "DATABRICKS_RUNTIME_VERSION", "MLFLOW_ACTIVE_MODEL_ID")

_Verb = TypeVar("_Verb", bound=Callable[..., Any])


def fits(database: Path, uri: str) -> bool:
    """Whether the tables are those of the tested version, and nothing asks for another way."""
    if not MLFLOW.is_here or "?" in uri or any(os.environ.get(name) for name in _OTHERWISE):
        return False
    try:
        with closing(_connected(database, PATIENCE_S)) as connection:
            return MLFLOW_TABLES.are_in(connection)
    except sqlite3.Error:  # MLflow says what is wrong
        return False


class _UnusualError(Exception):
    """MLflow's own client is asked."""


class Info(NamedTuple):
    """A run that is begun, by MLflow's names."""

    run_id: str
    run_name: str  # for people
    experiment_id: str
    start_time: int  # milliseconds since 1970
    artifact_uri: str


class Run(NamedTuple):
    info: Info


class Experiment(NamedTuple):
    """By MLflow's names."""

    experiment_id: str
    name: str
    artifact_location: str
    lifecycle_stage: str  # active or deleted
    tags: Mapping[str, str]


def _usual(verb: _Verb) -> _Verb:
    """The verb of this client, and MLflow's where that is not to be done here."""

    @wraps(verb)
    def done(client: DatabaseClient, *arguments: Any, **options: Any) -> Any:
        try:
            return verb(client, *arguments, **options)
        except (_UnusualError, sqlite3.Error) as error:
            if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF in _BUSY:
                raise
            name = verb.__name__
            above = getattr(super(DatabaseClient, client), name, None) or getattr(client.mlflow, name)
            return above(*arguments, **options)

    return cast("_Verb", done)


class DatabaseClient(Client):
    """The client of a store in this file, for the verbs below; those of MLflow's client have its names and arguments."""

    def __init__(self, database: Path, artifacts: Path, opened: Callable[[], Any]) -> None:
        """artifacts: the folder of those of this store."""
        super().__init__(opened)
        self._database = database
        self._artifacts = artifacts

    def _connected(self) -> sqlite3.Connection:
        """Raises sqlite3.Error."""
        return _connected(self._database, self.patience_s)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Raises sqlite3.Error; nothing is written where the block raises."""
        with closing(self._connected()) as connection:
            connection.execute("pragma foreign_keys = on")
            connection.execute("begin immediate")
            yield connection
            connection.execute("commit")

    @_usual
    def get_experiment_by_name(self, name: str) -> Experiment | None:
        with closing(self._connected()) as connection:
            return _experiment(connection, "name", name)

    @_usual
    def get_experiment(self, experiment_id: str) -> Experiment:
        with closing(self._connected()) as connection:
            found = _experiment(connection, "experiment_id", int(experiment_id))
        if found is None:
            raise _UnusualError
        return found

    @_usual
    def create_experiment(
        self, name: str, artifact_location: str | None = None, tags: Mapping[str, str] | None = None
    ) -> str:
        labels = dict(tags or {})
        _check_name(name, *labels.values())
        _check([], [], [RunTag(*each) for each in labels.items()])
        _folder((artifact_location or "",))
        with self._writing() as connection:
            number = empty.put_experiment(connection, name, str(artifact_location))
            connection.executemany(
                "insert into experiment_tags (experiment_id, key, value) values (?, ?, ?)",
                [(number, key, value) for key, value in labels.items()],
            )
        return str(number)

    @_usual
    def rename_experiment(self, experiment_id: str, new_name: str) -> None:
        _check_name(new_name)
        with self._writing() as connection:
            changed = connection.execute(
                "update experiments set name = ?, last_update_time = ? "
                "where experiment_id = ? and lifecycle_stage = 'active'",
                (new_name, _now_ms(), int(experiment_id)),
            )
            _check_one(changed)

    @_usual
    def set_experiment_tag(self, experiment_id: str, key: str, value: str) -> None:
        _check_name(value)
        _check([], [], [RunTag(key, value)])
        with self._writing() as connection:
            _place_of_experiment(connection, experiment_id)
            connection.execute(
                "insert into experiment_tags (experiment_id, key, value) values (?, ?, ?) "
                "on conflict (key, experiment_id) do update set value = excluded.value",
                (int(experiment_id), key, value),
            )

    @_usual
    def has_runs(self, experiment_id: str) -> bool:
        with closing(self._connected()) as connection:
            found = connection.execute("select 1 from runs where experiment_id = ? limit 1", (int(experiment_id),))
            return found.fetchone() is not None

    @_usual
    def create_run(
        self,
        experiment_id: str,
        start_time: int | None = None,
        tags: Mapping[str, str] | None = None,
        run_name: str | None = None,
    ) -> Run:
        labels = dict(tags or {})
        if not run_name or _NAME in labels:
            raise _UnusualError
        _check_name(run_name)
        rows = [*labels.items(), (_NAME, run_name)]
        _check([], [], [RunTag(*each) for each in labels.items()])
        with self._writing() as connection:
            place = _place_of_experiment(connection, experiment_id)
            run_id = uuid.uuid4().hex
            info = Info(run_id, run_name, str(experiment_id), start_time or _now_ms(), f"{place}/{run_id}/artifacts")
            connection.execute(
                "insert into runs (run_uuid, name, source_type, source_name, entry_point_name, user_id, status, start_time, "
                "source_version, lifecycle_stage, artifact_uri, experiment_id) "
                "values (?, ?, 'UNKNOWN', '', '', ?, 'RUNNING', ?, '', 'active', ?, ?)",
                (
                    *(run_id, run_name, labels.get("mlflow.user", "unknown")),
                    *(info.start_time, info.artifact_uri, int(experiment_id)),
                ),
            )
            _put_tags(connection, run_id, rows)
        return Run(info)

    @_usual
    def log_batch(
        self, run_id: str, metrics: Sequence[Metric] = (), params: Sequence[Param] = (), tags: Sequence[RunTag] = ()
    ) -> None:
        _check(metrics, params, tags)
        with self._writing() as connection:
            _check_active(connection, run_id)
            _put_params(connection, run_id, params)
            _put_metrics(connection, run_id, metrics)
            _put_tags(connection, run_id, tags)

    @_usual
    def set_tag(self, run_id: str, key: str, value: str) -> None:
        tag = RunTag(key, str(value))
        _check([], [], [tag])
        with self._writing() as connection:
            _check_active(connection, run_id)
            _put_tags(connection, run_id, [tag])

    @_usual
    def set_terminated(self, run_id: str, status: str, end_time: int | None = None) -> None:
        with self._writing() as connection:
            _check_active(connection, run_id)
            connection.execute(
                "update runs set status = ?, end_time = ? where run_uuid = ?", (status, end_time or _now_ms(), run_id)
            )

    @_usual
    def log_datasets(self, run_id: str, datasets: Sequence[Dataset], tags: Mapping[str, str]) -> None:
        if any(
            not each.name or len(each.name) > _MOST_OF_NAME or len(each.digest) > _MOST_OF_INPUT for each in datasets
        ):
            raise _UnusualError
        with self._writing() as connection:
            experiment = _check_active(connection, run_id)
            for each in datasets:
                _put_dataset(connection, run_id, experiment, each, tags)

    @_usual
    def log_artifact(self, run_id: str, local_path: str, artifact_path: str) -> None:
        with closing(self._connected()) as connection:
            found = connection.execute("select artifact_uri from runs where run_uuid = ?", (run_id,)).fetchone()
        _copied(Path(local_path), self._found_at(found) / artifact_path)

    @_usual
    def model_of_run(self, run_id: str, name: str) -> ModelOfRun | None:
        with closing(self._connected()) as connection:
            noted = connection.execute(
                "select destination_id from inputs where source_type = 'RUN_OUTPUT' and source_id = ? "
                "and destination_type = 'MODEL_OUTPUT'",
                (run_id,),
            ).fetchone()
            if noted is not None:
                return ModelOfRun(noted[0], is_ready=True, is_output=True)
            begun = connection.execute(
                "select model_id, status from logged_models where source_run_id = ? and name = ? "
                "and lifecycle_stage = 'active' order by creation_timestamp_ms desc",
                (run_id, name),
            ).fetchone()
            return None if begun is None else ModelOfRun(begun[0], is_ready=begun[1] == _READY, is_output=False)

    @_usual
    def begin_model(self, run_id: str, name: str, tags: Mapping[str, str], params: Mapping[str, str]) -> str:
        _check_name(name)
        if names.of_logged_model(name) != name:
            raise _UnusualError
        model_id, now = f"m-{uuid.uuid4().hex}", _now_ms()
        with self._writing() as connection:
            experiment = _check_active(connection, run_id)
            place = f"{_place_of_experiment(connection, experiment)}/models/{model_id}/artifacts"
            connection.execute(
                "insert into logged_models (model_id, experiment_id, name, artifact_location, creation_timestamp_ms, "
                "last_updated_timestamp_ms, status, lifecycle_stage, source_run_id) values (?, ?, ?, ?, ?, ?, ?, 'active', ?)",
                (model_id, experiment, name, place, now, now, _PENDING, run_id),
            )
            for kind, table, values in (("param", "params", params), ("tag", "tags", tags)):
                connection.executemany(
                    f"insert into logged_model_{table} (model_id, experiment_id, {kind}_key, {kind}_value) "
                    "values (?, ?, ?, ?)",
                    [(model_id, experiment, str(key), str(value)) for key, value in values.items()],
                )
        return model_id

    @_usual
    def log_model_artifacts(self, model_id: str, local_dir: str) -> None:
        with closing(self._connected()) as connection:
            found = connection.execute(
                "select artifact_location from logged_models where model_id = ? and lifecycle_stage = 'active'",
                (model_id,),
            ).fetchone()
        place = self._found_at(found)
        place.mkdir(parents=True, exist_ok=True)
        for folder, below, files in os.walk(local_dir):
            target = place / os.path.relpath(folder, local_dir)
            for each in below:
                (target / each).mkdir(exist_ok=True)
            for each in files:
                _put(Path(folder, each), target / each)

    def _found_at(self, found: tuple[str] | None) -> Path:
        return _folder(None if found is None else (rebase.found_at(found[0], self._artifacts),))

    @_usual
    def finalize_logged_model(self, model_id: str, status: str) -> None:
        if status != "READY":
            raise _UnusualError
        with self._writing() as connection:
            _check_one(
                connection.execute(
                    "update logged_models set status = ?, last_updated_timestamp_ms = ? "
                    "where model_id = ? and lifecycle_stage = 'active'",
                    (_READY, _now_ms(), model_id),
                )
            )

    @_usual
    def output_model(self, run_id: str, model_id: str, step: int) -> None:
        with self._writing() as connection:
            _check_active(connection, run_id)
            connection.execute(
                "insert into inputs (input_uuid, source_type, source_id, destination_type, destination_id, step) "
                "values (?, 'RUN_OUTPUT', ?, 'MODEL_OUTPUT', ?, ?)",
                (uuid.uuid4().hex, run_id, model_id, step),
            )

    @_usual
    def mlmodel(self, run_id: str, model_id: str, flavor: Mapping[str, Any]) -> str:
        described = {
            "artifact_path": f"models:/{model_id}",
            "flavors": {"python_function": {"python_version": platform.python_version(), **flavor}},
            "mlflow_version": importlib.metadata.version(MLFLOW.package),
            "model_id": model_id,
            "model_uuid": uuid.uuid4().hex,
            "prompts": None,
            "run_id": run_id,
            "utc_time_created": str(datetime.now(UTC).replace(tzinfo=None)),
        }
        return yaml.safe_dump(described, default_flow_style=False)


def _connected(database: Path, patience_s: float) -> sqlite3.Connection:
    """One that does not make a database where there is none. Raises sqlite3.Error."""
    place = f"{database.absolute().as_uri()}?mode=rw"
    return sqlite3.connect(place, uri=True, timeout=patience_s, isolation_level=None)


def _check_name(*found: str) -> None:
    if not all(0 < len(name) <= _MOST_OF_NAME and name.isprintable() for name in found):
        raise _UnusualError


def _experiment(connection: sqlite3.Connection, column: str, value: str | int) -> Experiment | None:
    found = connection.execute(
        f"select experiment_id, name, artifact_location, lifecycle_stage from experiments where {column} = ?", (value,)
    ).fetchone()
    if found is None:
        return None
    number, name, place, stage = found
    tags = connection.execute("select key, value from experiment_tags where experiment_id = ?", (number,))
    return Experiment(str(number), name, place, stage, dict(tags.fetchall()))


def _check(metrics: Sequence[Metric], params: Sequence[Param], tags: Sequence[RunTag]) -> None:
    """Raises _UnusualError for what MLflow may refuse."""
    keys = [param.key for param in params]
    named = [*keys, *(metric.key for metric in metrics), *(tag.key for tag in tags)]
    if (
        len({*keys}) < len(keys)
        or any(names.valid(each) != each for each in named)
        or any(len(param.value) > _MOST_OF_PARAM for param in params)
        or any(len(tag.value) > _MOST_OF_TAG or tag.key == _NAME for tag in tags)
    ):
        raise _UnusualError


def _check_active(connection: sqlite3.Connection, run_id: str) -> int:
    """The run's experiment."""
    found = connection.execute(
        "select experiment_id from runs where run_uuid = ? and lifecycle_stage = 'active'", (run_id,)
    ).fetchone()
    if found is None:
        raise _UnusualError
    return int(found[0])


def _check_one(changed: sqlite3.Cursor) -> None:
    if changed.rowcount != 1:
        raise _UnusualError


def _place_of_experiment(connection: sqlite3.Connection, experiment_id: int | str) -> str:
    """The place of the artifacts of one that is active."""
    found = connection.execute(
        "select artifact_location from experiments where experiment_id = ? and lifecycle_stage = 'active'",
        (int(experiment_id),),
    ).fetchone()
    _folder(found)
    return str(found[0])


def _folder(found: tuple[str] | None) -> Path:
    """The folder of an address, where it is one of this machine."""
    address = urlsplit("" if found is None else found[0])
    if address.scheme != "file" or address.netloc or address.query or address.fragment or address.path.endswith("/"):
        raise _UnusualError
    return Path(unquote(address.path))


def _put_params(connection: sqlite3.Connection, run_id: str, params: Sequence[Param]) -> None:
    known = dict(connection.execute("select key, value from params where run_uuid = ?", (run_id,))) if params else {}
    if any(known.get(each.key, each.value) != each.value for each in params):
        raise _UnusualError
    new = [(run_id, *each) for each in params if each.key not in known]
    connection.executemany("insert into params (run_uuid, key, value) values (?, ?, ?)", new)


def _put_tags(connection: sqlite3.Connection, run_id: str, tags: Sequence[tuple[str, str]]) -> None:
    connection.executemany(
        "insert into tags (run_uuid, key, value) values (?, ?, ?) "
        "on conflict (key, run_uuid) do update set value = excluded.value",
        [(run_id, key, value) for key, value in tags],
    )


def _put_metrics(connection: sqlite3.Connection, run_id: str, metrics: Sequence[Metric]) -> None:
    """Metrics that are there are not told again, and the latest of each key is kept beside all."""
    rows = [(run_id, each.key, *_stored(each.value), each.timestamp, each.step) for each in metrics]
    values = "(run_uuid, key, value, is_nan, timestamp, step) values (?, ?, ?, ?, ?, ?)"
    connection.executemany(f"insert into metrics {values} on conflict do nothing", rows)
    connection.executemany(
        f"insert into latest_metrics {values} on conflict (key, run_uuid) do update set "
        "value = excluded.value, is_nan = excluded.is_nan, timestamp = excluded.timestamp, step = excluded.step "
        "where (excluded.step, excluded.timestamp, excluded.value) > (step, timestamp, value)",
        rows,
    )


def _stored(value: float) -> tuple[float, bool]:
    """The number, and whether it is none; of what is infinite the largest there is."""
    if math.isnan(value):
        return 0.0, True
    return max(-sys.float_info.max, min(value, sys.float_info.max)), False


def _put_dataset(
    connection: sqlite3.Connection, run_id: str, experiment: int, dataset: Dataset, tags: Mapping[str, str]
) -> None:
    connection.execute(
        "insert into datasets (dataset_uuid, experiment_id, name, digest, dataset_source_type, dataset_source) "
        "values (?, ?, ?, ?, ?, ?) on conflict do nothing",
        (uuid.uuid4().hex, experiment, *dataset),
    )
    known = connection.execute(
        "select dataset_uuid from datasets where experiment_id = ? and name = ? and digest = ?",
        (experiment, dataset.name, dataset.digest),
    ).fetchone()
    edge = uuid.uuid4().hex
    made = connection.execute(
        "insert into inputs (input_uuid, source_type, source_id, destination_type, destination_id) "
        "values (?, 'DATASET', ?, 'RUN', ?) on conflict do nothing",
        (edge, *known, run_id),
    )
    if made.rowcount == 1:
        connection.executemany(
            "insert into input_tags (input_uuid, name, value) values (?, ?, ?)",
            [(edge, key, value) for key, value in tags.items()],
        )


def _copied(source: Path, folder: Path) -> None:
    """Into the folder, under its own name: all of it or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / source.name
    if target.exists() and target.samefile(source):
        return
    with temporary.folder(folder, ".artifact.uploading.") as own:
        unfinished = own / source.name
        _put(source, unfinished)
        unfinished.replace(target)


def _put(source: Path, target: Path) -> None:
    """A copy of a file. Weights and states, which may be gigabytes and are never changed once they are written, are the same
    file by another name, where the file system can do that."""
    if source.suffix == _LARGE:
        target.unlink(missing_ok=True)
        with suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target)


def _now_ms() -> int:
    return int(time.time() * 1000)
