"""A fork server: imports what its role needs, waits, and forks for who asks.

    python -P -c "..." ROLE LISTENER OWNER IDLE ROOT        # started by places.py alone

LISTENER: the descriptor of its socket; OWNER: of a pipe, with whose end it ends, or -1; IDLE: after so many seconds without a
process of its own that lives; ROOT: where orchestrator lies. Its first line of output says that it is ready, and of what it is
made. It runs a single thread, so what is forked holds no lock of another one.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.forkserver import client, likeness
from orchestrator.forkserver.client import Message
from orchestrator.numerics import determinism

_DESCRIPTORS = 4
_PATIENCE_S = 10.0  # with one that has connected and says nothing
_LOOK_MS = 3_600_000
_SINGLE = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


# What a command sets before it imports torch, and Python reads as it starts.
_OF_COMMANDS = {name: value for name, value in determinism.ENVIRONMENT.items() if name != "PYTHONHASHSEED"}


@dataclass(frozen=True)
class Role:
    """loads: modules that are imported, and functions of them that are called, `module:function`: neither ray, which reads its
    variables as it is imported, nor anything of a project; variables: set while it is imported, where they are not set:
    the libraries of numpy and of Arrow start threads otherwise."""

    loads: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=lambda: _SINGLE)


ROLES: Mapping[str, Role] = {
    "worker": Role(
        (
            "torch",
            "orchestrator.engine.worker",
            "orchestrator.engine.member.claims",
            "orchestrator.engine.member.crash_record",
            "orchestrator.provenance.code.imported",
            "orchestrator.provenance.environment.node",
            "orchestrator.transports.shared_memory",
            "orchestrator.transports.sockets",
            "orchestrator.checkpoints.writer",
        )
    ),
    "driver": Role(
        (
            "torch",
            "orchestrator.tracking.lean:prefer",
            "orchestrator.tracking.store:load",
            "orchestrator.commands.launch.rehearsal",
            "orchestrator.driver.recording.opening",
            "orchestrator.driver.report.pictures.drawing",
            "dvc.repo",
        ),
        {**_SINGLE, "JE_ARROW_MALLOC_CONF": "background_thread:false", **_OF_COMMANDS},
    ),
}


@dataclass(frozen=True)
class Request:
    """What a process that has been forked is to become."""

    argv: Sequence[str]
    path: Sequence[str] | None
    connection: socket.socket | None  # of a driver


class Server:
    """owner: see above; read, own: variables that imports have read, and those that it began with."""

    def __init__(self, role: str, listener: socket.socket, owner: int, idle_s: float) -> None:
        self._role = role
        self._listener = listener
        self._owner = owner
        self._idle_s = idle_s
        self._base = list(sys.path)
        self._own = dict(os.environ)
        self._read: dict[str, str | None] = {}
        self._given: dict[str, str] = {}
        self._rights = likeness.rights(os.getpid())
        self._waiting: dict[int, socket.socket | None] = {}  # by process: who is told how it ends
        self._last = time.monotonic()

    def load(self) -> None:
        """Raises RuntimeError where what was imported has started a thread."""
        role = ROLES[self._role]
        self._given = {name: value for name, value in role.variables.items() if name not in os.environ}
        os.environ.update(self._given)
        with likeness.variables_read() as self._read:
            for name, _, function in (each.partition(":") for each in role.loads):
                module = importlib.import_module(name)
                if function:
                    getattr(module, function)()
        for name in self._given:
            del os.environ[name]
        self._files = likeness.imported_files()
        if len([*Path("/proc/self/task").iterdir()]) > 1 or threading.active_count() > 1:
            raise RuntimeError("an imported library has started a thread, so that nothing can be forked from here")
        gc.collect()
        gc.freeze()  # so that no search for garbage writes to pages that are shared

    def serve(self) -> Request | None:
        """Returns in each process that is forked what it is to become; None in the server, when it is over."""
        wake, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        poll = select.poll()
        for descriptor in (self._listener.fileno(), wake, *([self._owner] if self._owner >= 0 else [])):
            poll.register(descriptor, select.POLLIN | select.POLLHUP)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(self._left_ms())}
            if wake in ready:
                os.read(wake, 4096)
            self._reap()
            if self._owner in ready or self._left_ms() == 0:
                return self._over()
            if self._listener.fileno() in ready:
                request = self._accept()
                if request == "over":
                    return self._over()
                if isinstance(request, Request):
                    signal.set_wakeup_fd(-1)
                    for descriptor in (
                        wake,
                        write,
                        self._listener.fileno(),
                        *([self._owner] if self._owner >= 0 else []),
                    ):
                        os.close(descriptor)
                    self._listener.detach()
                    return request

    def _over(self) -> None:
        """From now on nobody finds this server."""
        Path(self._listener.getsockname()).unlink(missing_ok=True)
        self._listener.close()

    def _left_ms(self) -> int | None:
        """Until it is idle for too long; None while a process of its own lives."""
        left_s = self._last + self._idle_s - time.monotonic()
        return None if self._waiting else max(0, min(_LOOK_MS, round(1000 * left_s)))

    def _reap(self) -> None:
        for process in list(self._waiting):
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                self._last = time.monotonic()
                connection = self._waiting.pop(process)
                if connection is not None:
                    with contextlib.suppress(OSError), connection:
                        client.send(connection, {"status": status})

    def _accept(self) -> Request | str | None:
        """What a process that was forked is to become; "over" where this server must not be asked any more."""
        connection, _ = self._listener.accept()
        connection.settimeout(_PATIENCE_S)
        descriptors: list[int] = []
        try:
            asker, user = client.peer(connection)
            if user != os.getuid():
                return None
            message, descriptors = client.receive(connection, _DESCRIPTORS)
            if message is None:
                return None
            if message.get("stop") or message.get("about"):
                client.send(connection, self.about())
                return "over" if message.get("stop") else None
            why, over = self._refusal(asker, message, descriptors)
            if why is not None or message.get("probe"):
                client.send(connection, {"refused": why} if why is not None else self.about())
                return "over" if over else None
            return self._fork(connection, asker, message, descriptors)
        except (OSError, ValueError, KeyError, TypeError):  # who asks has gone, or says what nobody here says
            return None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
            connection.close()

    def about(self) -> Message:
        """What is said of it: its process, and how long it still waits."""
        left_s = None if self._waiting else round(self._last + self._idle_s - time.monotonic(), 1)
        return {
            "pid": os.getpid(),
            "role": self._role,
            "busy": len(self._waiting),
            "idle_s": self._idle_s,
            "left_s": left_s,
        }

    def _refusal(self, asker: int, message: Message, descriptors: Sequence[int]) -> tuple[str | None, bool]:
        """Why a process that is forked would not be what is asked for, and whether that is so for all that will be asked."""
        file = likeness.changed(self._files)
        if file is not None:
            return f"{file} has changed since it was imported", True
        if rights := likeness.other_rights(self._rights, likeness.rights(asker)):
            return f"it has other rights: {', '.join(rights)}", False
        if names := likeness.other_variables(self._own, self._read, message["environ"], self._given):
            return f"other values of {', '.join(names[:4])}", False
        if message.get("interpreter", sys.executable) != sys.executable:
            return f"another interpreter: {message['interpreter']}", False
        if (flags := message.get("flags")) is not None and flags != likeness.flags():
            return "Python was started with other options", False
        if descriptors and (name := likeness.shadowed(descriptors[-1])) is not None:
            return f"{name} in the working directory hides a library", False
        return None, False

    def _fork(self, connection: socket.socket, asker: int, message: Message, descriptors: list[int]) -> Request | None:
        tells = message.get("tells", False)
        process = os.fork()
        if process:
            self._waiting[process] = connection.dup() if tells else None
            return None
        kept = connection.dup() if tells else None
        for other in self._waiting.values():
            if other is not None:
                other.close()
        try:
            _become(asker, message, descriptors)
        except OSError as error:
            client.send(connection, {"refused": f"it cannot be made alike: {error}"})
            os._exit(1)
        client.send(connection, {"pid": os.getpid()})
        path = message.get("path")
        return Request(message["argv"], self._base if path is None else path, kept)


def _become(asker: int, message: Message, descriptors: list[int]) -> None:
    """Raises OSError."""
    os.setpgid(0, 0)  # Ray ends a worker's whole group with it
    likeness.take_over(asker)
    os.fchdir(descriptors[3])
    for number in (0, 1, 2):
        os.dup2(descriptors[number], number)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    likeness.take_signals_over(asker)
    os.environ.clear()
    os.environ.update(message["environ"])
    _open_streams()
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    importlib.invalidate_caches()


def _open_streams() -> None:
    """As Python does when it starts; an import may have wrapped them, and the server's went elsewhere."""
    at_once = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        usual = getattr(sys, f"__{name}__")
        how: dict[str, Any] = {"encoding": usual.encoding, "errors": usual.errors, "closefd": False}
        stream = open(number, "w" if number else "r", **how)  # noqa: SIM115
        if number:
            stream.reconfigure(line_buffering=number == 2 or stream.isatty(), write_through=at_once)  # type: ignore[attr-defined]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def run(request: Request) -> None:
    """In a process that was forked: what was asked for, from its first line on."""
    sys.argv[:] = request.argv
    if request.connection is None:  # a program by its path, as Ray starts workers
        sys.path[:] = [os.path.dirname(request.argv[0]), *(request.path or ())]  # noqa: PTH120
        runpy.run_path(request.argv[0], run_name="__main__")
        return
    sys.path[:] = request.path or ()
    connection = request.connection
    threading.Thread(target=_end_with, args=(connection,), name="asker", daemon=True).start()
    runpy.run_module("orchestrator.commands.line", run_name="__main__", alter_sys=False)


def _end_with(connection: socket.socket) -> None:
    """The one that has asked stands for this process: killed like it, and at once."""
    connection.settimeout(None)
    with contextlib.suppress(OSError):
        connection.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    role, listener, owner, idle = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = Server(role, socket.socket(fileno=listener), owner, idle)
    server.load()
    print(json.dumps(server.about()), flush=True)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    os.close(nowhere)
    request = server.serve()
    if request is not None:
        run(request)
