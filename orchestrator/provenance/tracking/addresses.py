"""The addresses of MLflow's stores and of its pages: which kind of store one names, how MLflow is given it, and what a browser
opens. Nothing is opened here, but a folder whose path MLflow would read otherwise.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from functools import cache
from pathlib import Path
from urllib.parse import quote, unquote

from orchestrator.errors import coded

_SQLITE = "sqlite:///"
_IN_MEMORY = re.compile(r"sqlite(\+\w+)?:/{0,3}((file:)?:memory:|\?|\Z).*|sqlite[+:].*[?&]mode=memory\b.*")
_HOST_AND_PORT = re.compile(r"(?:[^/@]*@)?([\w.-]+:\d+(?:/.*)?)")
_VIEW = "?workflowType=machine_learning"  # of MLflow's pages; the other one is about GenAI


def is_server(uri: str | None) -> bool:
    """Whether the store is behind an MLflow server, which keeps the artifacts too."""
    return uri is not None and uri.startswith(("http://", "https://"))


def problems(uri: str | None) -> list[str]:
    """Why nothing can be recorded at the address that `tracking.uri` gives."""
    if uri is not None and _IN_MEMORY.fullmatch(uri):
        why = "a database in memory is gone before it can be read; name a file, such as sqlite:///mlflow.db"
        return [coded("mlflow.in-memory", f"tracking.uri: {uri}: {why}")]
    if uri is not None and (server := _HOST_AND_PORT.fullmatch(uri)):
        why = f"http:// or https:// is missing before it, such as http://{server[1]}"
        return [coded("mlflow.no-scheme", f"tracking.uri: {server[1]} is no address of a server: {why}")]
    return []


def is_of_this_machine(place: str) -> bool:
    """Whether a store or artifacts at this address lie in a file or a folder, which other machines do not have."""
    return place.startswith(("sqlite:", "file:")) or (":" not in place and not place.startswith("databricks"))


def default_uri(folder: Path) -> str:
    """The store inside the project's `.orchestrator` folder."""
    return uri_of(folder.resolve() / "mlflow.db")


def database_of(uri: str) -> Path | None:
    """The file of a store in SQLite, beside which its artifacts lie; it may be another project's."""
    return Path(unquote(uri.removeprefix(_SQLITE).partition("?")[0])) if uri.startswith(_SQLITE) else None


def uri_of(database: Path) -> str:
    """The address of a store in this file. Only what would mean something else in an address is written as its number."""
    return f"{_SQLITE}{str(database).replace('%', '%25').replace('?', '%3F')}"


def as_opened(uri: str) -> str:
    """The address that MLflow is to open. It makes the folder that it reads in an address without its numbers, which is another
    one beside the store's where there are some; by way of this process there are none. Good as long as this process lives."""
    database = database_of(uri)
    place, mark, query = uri.removeprefix(_SQLITE).partition("?")
    if database is None or str(database) == place:
        return uri
    found = database.parent.stat()
    held = _held(database.parent, found.st_dev, found.st_ino)
    return f"{_SQLITE}/proc/{os.getpid()}/fd/{held}/{quote(database.name)}{mark}{query}"


@cache
def _held(folder: Path, *_place: int) -> int:
    """A descriptor of the folder, which stays open."""
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)


def absolute(uri: str) -> str:
    """The same place from any folder: a rerun is launched in another one than the command was typed in."""
    place = uri.removeprefix(_SQLITE)
    if uri.startswith(_SQLITE):
        return uri if place.startswith((":", "?", "/")) else f"{uri_of(Path.cwd())}/{place}"
    return uri if ":" in uri or uri.startswith("databricks") else str(Path(uri).absolute())


def run_page(address: str, experiment_id: str, run_id: str) -> str:
    """The charts of a run at a server. A browser that was never told what this server is used for shows GenAI otherwise,
    whatever the experiment's kind."""
    return f"{address.rstrip('/')}/#/experiments/{experiment_id}/runs/{run_id}/model-metrics{_VIEW}"


def experiment_page(address: str, experiment_id: str) -> str:
    """The list of an experiment's runs."""
    return f"{address.rstrip('/')}/#/experiments/{experiment_id}/runs{_VIEW}"


def as_argument(uri: str | None) -> str:
    """The end of a command that is typed into a shell. uri: of the store; None for the project's own."""
    return "" if uri is None else f" tracking.uri={shlex.quote(uri)}"


def server_command(uri: str, port: int) -> tuple[list[str], dict[str, str]]:
    """The command that shows a store in a browser, on this machine alone, and the environment that it needs. As it comes it
    takes 11 s and 2.5 GB; with one worker and no job runner it is 6 s and 0.5 GB."""
    options = ["--backend-store-uri", as_opened(uri), "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    light = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    return [sys.executable, "-m", "mlflow", "ui", *options], light
