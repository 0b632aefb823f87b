"""`ui`: the runs of this project in a browser, with MLflow's own pages, until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from orchestrator.driver.record.folders import NAME, project_folder
from orchestrator.driver.terminal.child_process import end_with_parent
from orchestrator.driver.terminal.signals import WATCHED
from orchestrator.errors import RunFailed, UsageError
from orchestrator.tracking import Store, is_server, server_command

_START_S: Final = 120.0
_END_S: Final = 10.0  # for a server that was asked to end
_LOOK_S: Final = 0.1


def ui(project: Path, port: int | None, uri: str | None = None) -> int:
    """Serve the pages of the project's own store, or of the store `uri`, and say where; the exit code, when they were ended.

    port: None for a free one. Raises UsageError, ConfigurationError, RunFailed when the server does not start or does not stay.
    """
    if uri is not None and is_server(uri):
        raise UsageError(f"{uri} is an MLflow server, which shows its runs itself", f"open {uri} in a browser")
    if uri is None and not (project / NAME / "mlflow.db").exists():
        raise UsageError(f"there are no runs in {project}", "launch one with conf=NAME")
    store = Store(uri, project_folder(project))
    port = _free(port)
    address = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log, _serving(store.uri, port, log) as server:
        try:
            _await(server, f"{address}/health", log)
            print(f"the runs are shown at {address}; end with Ctrl-C", flush=True)
            server.wait()
        except KeyboardInterrupt:
            return 0
        raise RunFailed(f"the MLflow server ended by itself (exit code {server.returncode})", _last_words(log))


def _free(port: int | None) -> int:
    """Raises UsageError for a port that is taken."""
    with socket.socket() as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind(("127.0.0.1", port or 0))
        except OSError as error:
            raise UsageError(
                f"port={port}: it cannot be used: {error.strerror}", "leave port out for a free one"
            ) from None
        return int(found.getsockname()[1])


@contextmanager
def _serving(uri: str, port: int, log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A process group of its own: Ctrl-C in the terminal is for this command, which then ends all of it."""
    command, environment = server_command(uri, port)
    server = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        preexec_fn=end_with_parent,
    )
    try:
        yield server
    finally:
        for number in WATCHED:  # a second Ctrl-C would leave it behind
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(_END_S)


def _await(server: subprocess.Popen[bytes], address: str, log: IO[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=2):
            return
        if server.poll() is not None or time.monotonic() > deadline:
            raise RunFailed("the MLflow server did not start", _last_words(log))
        time.sleep(_LOOK_S)


def _last_words(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return f"its last words: {lines[-1] if lines else 'none'}"
