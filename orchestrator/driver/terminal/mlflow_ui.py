"""A store of MLflow served on this machine alone: to browsers, and to programs with another MLflow than ours.

A database that a newer MLflow has opened cannot be opened by an older one any more. The older one can still talk to a server.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Final

from orchestrator.driver.terminal.child_process import end_with_parent
from orchestrator.driver.terminal.signals import WATCHED
from orchestrator.errors import RunFailed, UsageError
from orchestrator.provenance.tracking import server_command

_HOST: Final = "127.0.0.1"
_START_S: Final = 120.0
_END_S: Final = 10.0  # for a server that was asked to end
_LOOK_S: Final = 0.1


@contextmanager
def served(uri: str) -> Iterator[str]:
    """The address of a server for the store, on a free port, that is gone after the block. Raises RunFailed."""
    port = free_port(None)
    address = f"http://{_HOST}:{port}"
    with tempfile.TemporaryFile() as log, serving(uri, port, log) as server:
        wait_for(server, address, log)
        yield address


def free_port(port: int | None) -> int:
    """The port, or a free one. Raises UsageError for one that is taken."""
    with socket.socket() as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((_HOST, port or 0))
        except OSError as error:
            raise UsageError(
                f"port={port}: it cannot be used: {error.strerror}",
                "leave port out for a free one",
                code="mlflow.port-taken",
            ) from None
        return int(found.getsockname()[1])


@contextmanager
def serving(uri: str, port: int, log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
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
        is_main = threading.current_thread() is threading.main_thread()  # others get no signals, and may set none
        watched_here = WATCHED if is_main else ()
        # Or a second Ctrl-C leaves it.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in watched_here}
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(_END_S)
        for watched, handler in before.items():
            signal.signal(watched, handler)


def without_proxy(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables with which a program reaches the server by no proxy. environ: that it has otherwise."""
    others = environ.get("no_proxy") or environ.get("NO_PROXY")
    return dict.fromkeys(("no_proxy", "NO_PROXY"), f"{others},{_HOST}" if others else _HOST)


def wait_for(server: subprocess.Popen[bytes], address: str, log: IO[bytes]) -> None:
    """Returns when it answers. No proxy that is set for the network is asked, which knows nothing of this machine. Raises
    RunFailed."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + _START_S
    while True:
        with contextlib.suppress(OSError), opener.open(f"{address}/health", timeout=2):
            return
        if server.poll() is not None or time.monotonic() > deadline:
            raise RunFailed("the MLflow server did not start", last_words(log), code="mlflow.server-not-started")
        time.sleep(_LOOK_S)


def last_words(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return f"its last words: {lines[-1] if lines else 'none'}"
