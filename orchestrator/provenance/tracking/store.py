"""Opening the MLflow store of a project: quietly, safely for several launches at once, and with orphans marked.

MLflow's fluent API is not used: it keeps a global run, and marks an interrupted one FINISHED at exit. Creating the database is
a race that leaves it unusable (four processes at once all crashed), so it is opened under a file lock. A driver that was
killed with SIGKILL leaves its run RUNNING for ever; the next start on the same machine marks it KILLED.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import pwd
import re
import shutil
import socket
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from orchestrator.common import locks, processes, temporary
from orchestrator.errors import ConfigurationError, UsageError
from orchestrator.provenance.tracking import database_client, empty, lean, names, store_errors, tables
from orchestrator.provenance.tracking.addresses import (
    absolute,
    as_opened,
    database_of,
    default_uri,
    is_server,
    problems,
)
from orchestrator.provenance.tracking.client import Client, RunTag
from orchestrator.provenance.tracking.database_client import DatabaseClient
from orchestrator.provenance.tracking.rebase import rebase
from orchestrator.records import redaction

if TYPE_CHECKING:
    from mlflow.entities import Experiment, Run

_REQUEST_S = 10  # how long one request to a server may take; MLflow's own default, with its retries, is minutes
_KIND = ("mlflow.experimentKind", "custom_model_development")  # else MLflow's pages open it among GenAI evaluations
_MLFLOWS_OWN = "Default"  # the experiment that it makes in each new store
_MOST_DIGITS = 18
_WHOLE_ID = re.compile("[0-9a-f]{32}")  # of a run: all others need not be asked for
_OF_ANY_STAGE = 3  # ViewType.ALL
USER = "mlflow.user"
PARENT = "mlflow.parentRunId"  # MLflow's own pages show a run below this one
KIND = "orchestrator.kind"
TRACE = "trace.root"  # the head of the Merkle tree of its trace
SETTINGS = "settings_sha256"  # of the file of its settings, as the launch wrote it
LABEL = "tag."  # begins a label of the user's, `run.tags`, so that none takes the place of one of the record's own
DIGEST_OF_BEST = "best_digest"  # of a run whose model is not that of its last step, whose digest is the other one
EXECUTION = "system/"  # begins a metric that says how a run was executed: MLflow's pages have those apart from results
PID, STARTED, HOST, BOOT = (f"orchestrator.{name}" for name in ("pid", "pid_started", "host", "boot_id"))
MACHINE = "orchestrator.machine_id"  # other machines may have the same name: a run of theirs is no orphan of this one
_BEAT = "orchestrator.beat"  # grows while a driver lives, of a run with which another machine may go on


@dataclass(frozen=True)
class Past:
    """A run that the store knows."""

    run_id: str  # MLflow's
    name: str  # of the run, for people
    experiment: str  # its name
    status: str  # MLflow's, such as FINISHED
    started_ms: int  # milliseconds since 1970
    steps: int | None  # completed ones; None when it ended before its first
    metrics: dict[str, float]  # the last value of each, by name
    digest: str | None  # of the final parameters; None of a run that did not finish
    rerun_of: str | None = None  # the id of the run that it repeats; None of an original
    verdict: str | None = None  # of itself as a rerun, or else of the last rerun of it; None where there is none
    user: str | None = None  # who launched it, by their own account; None where none is given
    ended_ms: int | None = None  # milliseconds since 1970; None while it runs
    settings: dict[str, str] = field(default_factory=dict)  # as text, by dotted key
    kind: str = "run"  # "run", or what it is the record of
    parent: str | None = None  # the id of the run that it is a part of; None of a whole
    labels: dict[str, str] = field(default_factory=dict)  # of `run.tags`, by name
    best: str | None = None  # the digest of its model, where that is not the last one; None where it is
    trace: str | None = None  # the head of the Merkle tree of its trace; None where none is recorded
    settings_sha256: str | None = None  # of the file of its settings, as the launch wrote it; None of older ones
    is_orphan: bool = False  # whether the store says that it runs, though its driver on this machine is gone
    is_driven_here: bool = False  # whether its driver is a living process of this machine
    driver: tuple[str, str] = ("", "")  # its last one, by process and host, as far as they are known


class Driving(NamedTuple):
    """The process that drives a run, as the tags of the run tell. process: its tags, see `identity_of_process`; beat:
    another one each time that it told that it lives."""

    is_running: bool
    process: tuple[str, ...]
    beat: str | None

    @property
    def is_driven(self) -> bool:
        """Whether it is known by whom."""
        return all(self.process)

    @property
    def named(self) -> str:
        pid, _, host, _ = self.process
        return f"process {pid} on {host}"

    @property
    def driver(self) -> tuple[str, str]:
        """As in `Past`."""
        pid, _, host, _ = self.process
        return pid, host


def user() -> str:
    """The user of this process: `USER`, or else the name of the account, or its number if it has none."""
    return os.environ.get("USER") or _account()


def accounts() -> set[str]:
    """The names under which this user may have launched a run: `user` is another one where the variable is not set, and was the
    number in older versions."""
    return {user(), _account(), str(os.getuid())}


def _account() -> str:
    number = os.getuid()
    with suppress(KeyError):  # an account without a name
        return pwd.getpwuid(number).pw_name
    return str(number)


def identity_of_process() -> dict[str, str]:
    """Tags by which a later start can tell whether this process is still alive."""
    pid = os.getpid()
    return {PID: str(pid), STARTED: processes.started(pid) or "", HOST: socket.gethostname(), BOOT: _boot_id()}


def tags_of_driver() -> dict[str, str]:
    """The same, and of the machine, whose name others may have, too."""
    return {**identity_of_process(), MACHINE: _machine_id()}


class Store:
    """An open store: `client`, the URI, and the project's `.orchestrator`, where runs have their folders. There, too, artifacts
    of new experiments and the lock lie, unless the store is another project's.

    Raises ConfigurationError when the store cannot be opened.
    """

    def __init__(self, uri: str | None, folder: Path) -> None:
        if found := problems(uri):
            raise ConfigurationError(found)
        self.folder = folder
        self.uri = absolute(uri) if uri else default_uri(folder)
        database = database_of(self.uri)
        home = (database.parent if database else folder).resolve()
        self._home = home / "artifacts"
        self._artifacts = self._home.as_uri()
        is_read_only = _is_read_only(home)
        self._lock = None if is_server(self.uri) or is_read_only else home / "mlflow.lock"
        self._database: Path | None = None  # one that was there, or whose tables were kept
        _silence()
        with self.usable(), self._locked():
            if database is not None and database.exists():
                self._database = database
                if not is_read_only:
                    rebase(database, self._home, self._locations)
            elif database is None:
                self.client = self._of_mlflow()
            elif empty.place(database, self._artifacts):
                self._database = database
            else:
                _make_tables(self.uri, self._artifacts)
                self.client = self._of_mlflow()
                empty.keep(database)

    @classmethod
    def with_run(cls, uri: str | None, folder: Path, name: str) -> Self:
        """The store in which a run of this name is to be found. Raises UsageError where there is none yet: to make an empty one
        takes long, and it is in the way afterwards."""
        _require_name(name)
        database = database_of(absolute(uri) if uri else default_uri(folder))
        if database is not None and not is_there(database):
            raise UsageError(
                f"there is no run {'yet' if name == 'last' else name}: nothing was recorded in {database}",
                "type it in the folder where the run was launched, or name the store that has it with tracking.uri=URI",
                code="mlflow.nothing-recorded",
            )
        return cls(uri, folder)

    @cached_property
    def client(self) -> Client:
        """Without MLflow where that can be. A database that was there is opened when it is asked for. Raises
        ConfigurationError."""
        with self.usable(), self._locked():
            if self._database is not None and database_client.fits(self._database, self.uri):
                return DatabaseClient(self._database, self._home, self._opened)
            return self._of_mlflow()

    def _of_mlflow(self) -> Client:
        """Opened. Raises ConfigurationError."""
        client = Client(self._opened)
        _ = client.mlflow
        return client

    def _opened(self) -> Any:
        """MLflow's own. Raises ConfigurationError."""
        return client_of(self.uri)

    def _locations(self) -> list[str]:
        """The places of the artifacts of all experiments. To be called under the lock."""
        self.client = Client(self._opened)
        return [str(each.artifact_location) for each in self.client.experiments(view_type=_OF_ANY_STAGE)]

    def _locked(self) -> AbstractContextManager[None]:
        return nullcontext() if self._lock is None else locks.held(self._lock)

    @property
    def name(self) -> str | None:
        """As records may hold it: without credentials, and None for the project's own, which moves with the project."""
        return None if self.uri == default_uri(self.folder) else self.shown

    @property
    def shown(self) -> str:
        """Its address in messages, which logs keep: without credentials."""
        return redaction.text(self.uri)

    def usable(self, wanted: str | None = None, instead: str = "") -> AbstractContextManager[None]:
        """Inside the block, a store that refuses what it is asked for is a ConfigurationError. wanted: that, in words."""
        return store_errors.usable(self.uri, wanted, instead)

    def usable_experiment(self, name: str) -> AbstractContextManager[None]:
        """Likewise, where runs of this experiment are written."""
        return self.usable(f"experiment {name} (run.experiment)", "take another one with run.experiment=NAME, ")

    def experiment(self, name: str) -> str:
        """The id of the experiment, created when it is new, with artifacts in the project's folder. Raises ConfigurationError
        for one that was deleted."""
        found = self.client.get_experiment_by_name(name)
        local = self.uri.startswith("sqlite:")
        if found is None and local and name.lower() == _MLFLOWS_OWN.lower():
            found = self._renamed(name)
        if found is None:
            try:
                place = self._artifacts if local else None
                return str(self.client.create_experiment(name, artifact_location=place, tags=dict([_KIND])))
            except Exception as error:  # another launch made it in the meantime
                if not store_errors.is_of_mlflow(error):
                    raise
                found = self.client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":
            raise store_errors.experiment_deleted(self.uri, name, found.experiment_id)
        if _KIND[0] not in found.tags:  # of an older version, or made by hand; a kind that somebody chose stays
            self.client.set_experiment_tag(found.experiment_id, *_KIND)
        return str(found.experiment_id)

    def _renamed(self, name: str) -> Experiment | None:
        """The experiment that MLflow itself has made in a store of ours, under this name while nothing is in it: two of nearly
        the same would be one too many. None where there is no such experiment."""
        own = self.client.get_experiment_by_name(_MLFLOWS_OWN)
        if own is None or own.lifecycle_stage == "deleted":
            return None
        if own.artifact_location not in (self._artifacts, f"{self._artifacts}/{own.experiment_id}"):
            return None
        if self.client.has_runs(own.experiment_id):
            return None
        self.client.rename_experiment(own.experiment_id, name)
        renamed: Experiment = self.client.get_experiment(own.experiment_id)
        return renamed

    def past(self) -> list[Past]:
        """All runs that this program recorded, of all experiments, newest first. Raises ConfigurationError."""
        return self._search(HOST)

    def newest_experiment(self) -> str:
        """The experiment of the newest run; MLflow's own, which is empty, if there is none."""
        experiments = [experiment.experiment_id for experiment in self.client.experiments()]
        newest = self.client.search_runs(experiments, order_by=["attributes.start_time DESC"], max_results=1)
        return str(newest[0].info.experiment_id if newest else experiments[0])

    def of_identity(self, identity: str) -> list[Past]:
        """The runs of this identity; none where the store cannot be asked."""
        try:
            return self._search("identity", identity)
        except Exception:  # MLflow's, requests': a comparison is a comfort
            return []

    def _search(self, tag: str, value: str | None = None, run_id: str | None = None) -> list[Past]:
        """Those that have this tag, with this value if one is given, newest first. run_id: as `tables.runs` takes it. Raises
        ConfigurationError where a server that could be opened is away again."""
        if self._database is not None and (rows := tables.runs(self._database, tag, value, run_id)) is not None:
            return [_past(row) for row in rows]
        wanted = f"tags.`{tag}` " + ("LIKE '%'" if value is None else f"= '{value}'")
        with self.usable():
            return [
                _past(row) for row in self._asked(wanted + (f" and attributes.run_id = '{run_id}'" if run_id else ""))
            ]

    def _asked(self, wanted: str) -> list[tables.RunRow]:
        experiments = {experiment.experiment_id: experiment.name for experiment in self.client.experiments()}
        found: list[tables.RunRow] = []
        token: str | None = None
        while True:
            page = self.client.search_runs(
                list(experiments), wanted, order_by=["attributes.start_time DESC"], page_token=token
            )
            found += [_row(run, experiments[run.info.experiment_id]) for run in page]
            token = page.token
            if not token:
                return found

    def find(self, name: str) -> Past:
        """The run of this id, of the only id that begins so, or for `last` the newest one that is no part of another. Raises
        UsageError, and ConfigurationError."""
        _require_name(name)
        whole = self._search(HOST, run_id=name) if _WHOLE_ID.fullmatch(name) else []
        runs = whole or self.past()
        found = (
            [past for past in runs if past.parent is None][:1]
            if name == "last"
            else [past for past in runs if past.run_id.startswith(name)]
        )
        exact = [past for past in found if past.run_id == name]
        if len(exact or found) == 1:
            return (exact or found)[0]
        if not found:
            if _WHOLE_ID.fullmatch(name):
                self._refuse_by_name(name)
            raise UsageError(
                f"there is no run {'yet' if name == 'last' else name} in {self.shown}",
                "list them with: python -m orchestrator runs; `last` is the newest; those at a server need tracking.uri=URI",
                code="mlflow.no-such-run",
            )
        ids = ", ".join(past.run_id for past in found[:3])
        raise UsageError(
            f"{len(found)} runs begin with {name!r}: {ids}", "give more of the id", code="mlflow.ambiguous"
        )

    def _refuse_by_name(self, run_id: str) -> None:
        """Raises UsageError for a run that MLflow knows and `past` does not tell of."""
        stage = self._stage(run_id)
        if "deleted" in stage[:2]:
            of_experiment = f"experiments restore --experiment-id {stage.experiment_id}"  # with all its runs
            command = of_experiment if stage.experiment == "deleted" else f"runs restore --run-id {run_id}"
            raise UsageError(
                f"run {run_id} is deleted in {self.shown}",
                f"bring it back: {store_errors.restoring(self.uri, command)}",
                code="mlflow.run-deleted",
            )
        if stage.run:
            raise UsageError(
                f"run {run_id} in {self.shown} was not recorded by orchestrator",
                "list those that were with: runs",
                code="mlflow.other-run",
            )

    def _stage(self, run_id: str) -> tables.Stage:
        """The stages of the run and its experiment. Raises ConfigurationError for a run that this user may not see: a search
        leaves it out. A server with users says the same of one that is not there."""
        if self._database is not None and (stage := tables.stage(self._database, run_id)) is not None:
            return stage
        client = self.client.mlflow
        from mlflow.exceptions import MlflowException

        with self.usable(f"run {run_id}, if there is one,", "take one that `runs` lists, "):
            try:
                info = client.get_run(run_id).info
                experiment = client.get_experiment(info.experiment_id)
                return tables.Stage(info.lifecycle_stage, experiment.lifecycle_stage, info.experiment_id)
            except MlflowException as error:
                if store_errors.is_forbidden(error):
                    raise
                return tables.Stage()

    def fetch(
        self, run_id: str, folder: str, target: Path, *, anew: bool = False, only: str | None = None
    ) -> list[str]:
        """Bring the run's artifacts under `folder` into `target`, those that are not there, or all of them anew; returns the
        names of what was brought. only: the name of the one that is wanted. Raises ConfigurationError when they cannot be
        had."""
        brought: list[str] = []
        with self.usable(), temporary.folder(target.parent) as place:
            for artifact in self.client.list_artifacts(run_id, folder):
                name = Path(artifact.path).name
                is_wanted = not artifact.is_dir and only in (None, name)
                if is_wanted and (anew or not (target / name).exists()):
                    found = Path(self.client.download_artifacts(run_id, artifact.path, str(place)))
                    if artifact.file_size not in (None, found.stat().st_size):  # of what is in front of a server
                        raise OSError(f"{artifact.path} came as something else")
                    shutil.move(found, target / name)
                    brought.append(name)
        return brought

    def folders(self, run_id: str, folder: str) -> list[str]:
        """The names of the folders among the run's artifacts under `folder`. Raises ConfigurationError."""
        with self.usable():
            return [Path(each.path).name for each in self.client.list_artifacts(run_id, folder) if each.is_dir]

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags of a run that has ended, at most a hundred. Raises what MLflow raises."""
        self.client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def driving(self, run_id: str) -> Driving:
        """The driver of the run. Raises what MLflow raises."""
        run = self.client.get_run(run_id)
        process = tuple(run.data.tags.get(name, "") for name in (PID, STARTED, HOST, BOOT))
        return Driving(run.info.status == "RUNNING", process, run.data.tags.get(_BEAT))

    def beat(self, run_id: str, count: int) -> None:
        """Its driver lives. count: another one than before. Raises what MLflow raises."""
        self.client.set_tag(run_id, _BEAT, str(count))

    def mark_orphans(self, experiment_id: str, is_driven: Callable[[str], bool]) -> list[str]:
        """Mark runs that say RUNNING but whose driver, on this machine, is gone; returns their ids. is_driven: whether somebody
        has the run of this id, such as in another container, whose processes are not seen here."""
        host = socket.gethostname()
        tags_by_run = None if self._database is None else tables.running(self._database, experiment_id, HOST, host)
        if tags_by_run is None:
            filters = f"attributes.status = 'RUNNING' and tags.`{HOST}` = '{host}'"
            tags_by_run = {run.info.run_id: run.data.tags for run in self.client.search_runs([experiment_id], filters)}
        orphans = [run_id for run_id, tags in tags_by_run.items() if _is_orphan(tags) and not is_driven(run_id)]
        for run_id in orphans:
            self.client.set_terminated(run_id, "KILLED")
        return orphans

    def launched_before(self, experiment_id: str, started_ms: int, target: str, most: int) -> dict[str, set[str]]:
        """Runs of the experiment that trained this pipeline, have finished, and began before this time: the tags of each, by
        its id, newest first. Raises what MLflow raises."""
        arguments = (experiment_id, started_ms, target, most)
        tags_by_run = None if self._database is None else tables.finished(self._database, *arguments)
        if tags_by_run is None:
            filters = (
                f"attributes.status = 'FINISHED' and attributes.start_time < {started_ms} "
                f"and params.`pipeline.target` = '{target}'"
            )
            matching = self.client.search_runs(
                [experiment_id], filters, order_by=["attributes.start_time DESC"], max_results=most
            )
            tags_by_run = {run.info.run_id: set(run.data.tags) for run in matching}
        return tags_by_run

    def mark(self, orphans: Iterable[Past]) -> None:
        """Mark these as KILLED, whatever their experiment, unless somebody goes on with them by now. Raises what MLflow
        raises."""
        for past in orphans:
            run = self.client.get_run(past.run_id)
            if run.info.status == "RUNNING" and _is_orphan(run.data.tags):
                self.client.set_terminated(past.run_id, "KILLED")


def _row(run: Run, experiment: str) -> tables.RunRow:
    info, data = run.info, run.data
    return tables.RunRow(
        *(info.run_id, info.run_name or "", experiment, info.status, info.start_time, info.end_time),
        *(dict(data.params), data.tags, dict(data.metrics)),
    )


def _past(row: tables.RunRow) -> Past:
    tags = row.tags
    return Past(
        run_id=row.run_id,
        name=row.name,
        experiment=row.experiment,
        status=row.status,
        started_ms=row.started_ms,
        steps=_number(tags.get("steps", "")),
        metrics={names.original(key): infinite(value) for key, value in row.metrics.items()},
        digest=tags.get("digest"),
        best=tags.get(DIGEST_OF_BEST),
        trace=tags.get(TRACE),
        settings_sha256=tags.get(SETTINGS),
        is_orphan=row.status == "RUNNING" and _is_orphan(tags),
        is_driven_here=row.status == "RUNNING" and _is_here(tags) and not _is_orphan(tags),
        driver=(tags.get(PID, ""), tags.get(HOST, "")),
        rerun_of=tags.get("rerun_of"),
        verdict=tags.get("verdict"),
        user=tags.get(USER),
        ended_ms=row.ended_ms,
        settings={names.original(key): value for key, value in row.settings.items()},
        kind=tags.get(KIND, "run"),
        parent=tags.get(PARENT),
        labels={names.original(key.removeprefix(LABEL)): value for key, value in tags.items() if key.startswith(LABEL)},
    )


def _require_name(name: str) -> None:
    """Raises UsageError for the empty name, such as of a variable of a shell that is not set: every id begins with it."""
    if not name:
        raise UsageError(
            "no run is named",
            "give the id of a run, its beginning, or `last`; list them with: python -m orchestrator runs",
            code="mlflow.unnamed",
        )


def is_there(database: Path) -> bool:
    """Whether a store in SQLite was made yet. Raises ConfigurationError where this user may not look."""
    try:
        return database.exists()
    except PermissionError as error:
        raise ConfigurationError(
            [f"tracking.uri: the MLflow store {database} cannot be read: {error.strerror}"],
            "ask the user whose it is for the right to read it, such as chmod -R g+rwX for your group",
            code="mlflow.not-yours",
        ) from error


def orphaned(run_id: str) -> str:
    """The sentence about a run that was marked."""
    return f"run {run_id} was left RUNNING by a driver that is gone; it is marked KILLED now"


def _silence() -> None:
    """No telemetry, no git calls, no banner, no progress bars, no addresses; before MLflow is imported. A server whose
    certificate nobody is to check (`MLFLOW_TRACKING_INSECURE_TLS`) is warned of once and not with each request."""
    warnings.filterwarnings("once", message="Unverified HTTPS request")
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["DO_NOT_TRACK"] = "true"
    os.environ["GIT_PYTHON_REFRESH"] = "quiet"
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    # A server that is gone must not hold up the driver; what could not be sent is sent later (tracker.py).
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(_REQUEST_S))
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(
        logging.CRITICAL
    )  # it tells of what it raises, with a traceback


def client_of(uri: str) -> Any:
    """MLflow's own, which has been answered once. Raises ConfigurationError."""
    _silence()
    with lean.importing(), store_errors.usable(uri):
        import mlflow

        opened = as_opened(uri)
        client = mlflow.MlflowClient(opened, opened)
        client.search_experiments(max_results=1)
    return client


def _make_tables(uri: str, artifacts: str) -> None:
    """And MLflow's default experiment, whose artifacts lie there. Left to itself MLflow writes the working directory into a
    statement, in which some of its characters end a text."""
    with lean.importing(), store_errors.usable(uri):
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        SqlAlchemyStore(as_opened(uri), artifacts)  # type: ignore[no-untyped-call]


def _is_read_only(folder: Path) -> bool:
    """Whether nobody writes there from this machine."""
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except FileNotFoundError:  # not yet
        return False


def infinite(value: float) -> float:
    """A metric as it was: MLflow keeps the largest number in the place of what is infinite."""
    return math.copysign(math.inf, value) if abs(value) >= sys.float_info.max else value


def _is_orphan(tags: Mapping[str, str]) -> bool:
    """Whether its driver, on this machine, is gone."""
    process = _number(tags.get(PID, ""))
    if process is None or not _is_here(tags):
        return False
    return tags.get(BOOT) != _boot_id() or processes.started(process) != tags.get(STARTED)


def _is_here(tags: Mapping[str, str]) -> bool:
    """Whether its driver is, or was, a process of this machine. Older versions have told its name alone."""
    return tags.get(HOST) == socket.gethostname() and tags.get(MACHINE, _machine_id()) == _machine_id()


def _number(text: str) -> int | None:
    """None for a tag that no launch has written, such as one of another user of the store."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


def _boot_id() -> str:
    return _told(Path("/proc/sys/kernel/random/boot_id"))


def _machine_id() -> str:
    """It outlives a boot; most containers have none. machine-id(5): the number itself is not told to others."""
    told = _told(Path("/etc/machine-id"))
    return told and hashlib.sha256(f"orchestrator {told}".encode()).hexdigest()[:32]


def _told(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
