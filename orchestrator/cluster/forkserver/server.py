"""A fork server: imports what workers need, waits, and forks for who asks.

    python -P -c "..." PLACE LISTENER OWNER ROOT        # started by launch_server.py alone

PLACE: the file of its socket; LISTENER: the socket's descriptor; OWNER: of a pipe, with whose end it ends; ROOT: where
orchestrator lies. It runs a single thread, so what is forked holds no lock of another one; and it opens no GPU, so what is
forked can start CUDA.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random
import runpy
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from orchestrator.cluster.forkserver import client, equivalence
from orchestrator.cluster.forkserver.client import Message

_DESCRIPTORS = 4
_PATIENCE_S = 10.0  # with one that has connected and says nothing
# Variables set while modules are imported, where they are not set: the libraries of numpy and of Arrow start threads otherwise.
_SINGLE = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
# Modules that are imported, and functions of them that are called, `module:function`; nothing of a project.
LOADED = (
    "torch",
    "orchestrator.numerics.exact:load",
    "orchestrator.worker.worker",
    "orchestrator.numerics.flop_counting",
    "orchestrator.worker.member.shared_queue",
    "orchestrator.worker.member.crash_record",
    "orchestrator.provenance.code.imported",
    "orchestrator.provenance.environment.node",
    "orchestrator.comm.transports.shared_memory",
    "orchestrator.comm.transports.sockets",
    "orchestrator.checkpoint.writer",
    "orchestrator.data.loaders",
)
# Libraries that Ray imports in each worker, 0.5 s of a processor, as far as they are installed. Arrow is left out: it starts a
# thread.
OF_RAY = (
    *("filelock", "google.protobuf.internal.builder", "jsonschema", "psutil", "pydantic", "pydantic.v1", "requests"),
    *("starlette.datastructures", "wcwidth", "yaml"),
)
# Ray itself, and modules of a worker that import it: 0.4 s of a processor and 20 MB. Ray reads its variables while it is
# imported, in Python and in C. So it is imported when the first worker asks, with the variables of that worker.
WITH_RAY = (
    "ray._private.workers.default_worker",
    "orchestrator.cluster.actors.member_actor",
    "orchestrator.cluster.actors.checkpoint_client",
)
_READ_BY_RAY = "RAY_"


@dataclass(frozen=True)
class Request:
    """The role of a process that has been forked: a program by its path, or a child of a worker."""

    argv: Sequence[str]
    path: Sequence[str]
    child: Child | None


@dataclass(frozen=True)
class Child:
    """A process that was forked to run a module of this package. program: the module whose `main` it is; parent: the
    connection over which it was asked for."""

    program: str
    parent: socket.socket


class Server:
    """The fork server of one user on one machine. place, owner: see above."""

    def __init__(self, place: Path, listener: socket.socket, owner: int, with_ray: Sequence[str] = WITH_RAY) -> None:
        """with_ray: modules that are imported when a worker asks for the first time."""
        self._place = place
        self._listener: socket.socket | None = listener  # None: nobody finds it any more
        self._owner = owner
        self._base = list(sys.path)
        self._with_ray = with_ray
        self._first: dict[str, str] | None = None  # the variables of the worker that has asked first
        self._own = dict(os.environ)  # the variables that it began with
        self._read: dict[str, str | None] = {}  # those that imports have read
        self._given: dict[str, str] = {}  # those that were set for imports alone
        self._made: dict[str, str] = {}  # those that imports have set themselves
        self._private: list[int] = []  # descriptors that what is forked does without
        self._rights = equivalence.rights(os.getpid())
        self._waiting: dict[int, socket.socket | None] = {}  # by process: who is told how it ends

    def load(self, modules: Sequence[str] = (*LOADED, *OF_RAY)) -> None:
        """Raises RuntimeError where nothing can be forked from what was imported."""
        self._given = {name: value for name, value in _SINGLE.items() if name not in os.environ}
        self._import(modules)

    def load_ray(self, environ: Mapping[str, str]) -> None:
        """Import what Ray's workers need. environ: the variables of the worker that asks. Raises RuntimeError where nothing
        can be forked from then on."""
        self._first = dict(environ)
        before = dict(os.environ)
        os.environ.clear()
        os.environ.update({**self._made, **environ})
        try:
            self._import(self._with_ray)
        except Exception as error:  # an installation that is damaged: workers say so themselves
            raise RuntimeError(f"Ray cannot be imported: {error}") from error
        finally:
            os.environ.clear()
            os.environ.update(before)

    def _import(self, modules: Sequence[str]) -> None:
        """Under the present variables. Raises RuntimeError where nothing can be forked from what was imported."""
        gc.unfreeze()
        own = dict(os.environ)
        os.environ.update(given := {name: self._given[name] for name in self._given if name not in own})
        with equivalence.variables_read() as read:
            for name, _, function in (each.partition(":") for each in modules):
                if (module := _imported(name)) is not None and function:
                    getattr(module, function)()
        for name in given:
            del os.environ[name]
        self._read = {**read, **self._read}
        self._made |= {name: value for name, value in os.environ.items() if own.get(name) != value}
        self._files = equivalence.imported_files()
        if len([*Path("/proc/self/task").iterdir()]) > 1 or threading.active_count() > 1:
            raise RuntimeError("an imported library has started a thread, so that nothing can be forked from here")
        if (gpu := equivalence.opened_gpu()) is not None:
            raise RuntimeError(
                f"an imported library has opened {gpu}, and CUDA computes in no process that is forked then"
            )
        gc.collect()
        gc.freeze()  # so that no search for garbage writes to pages that are shared

    def serve(self) -> Request | None:
        """Returns in each process that is forked what it is to become; None in the server, when it is over."""
        assert self._listener is not None
        wake, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        self._private = [wake, write, self._listener.fileno(), self._owner]
        poll = select.poll()
        for descriptor in self._private:
            if descriptor != write:
                poll.register(descriptor, select.POLLIN | select.POLLHUP)
        while self._is_wanted:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if wake in ready:
                os.read(wake, 4096)
            self._reap()
            if self._owner in ready:
                self._over()
                return None
            if self._listener is not None and self._listener.fileno() in ready:
                connection, _ = self._listener.accept()
                request = self._answer(connection)
                if request is not None:
                    return request
                if not self._is_found:
                    poll.unregister(self._private[2])
        return None

    @property
    def _is_found(self) -> bool:
        return self._listener is not None

    @property
    def _is_wanted(self) -> bool:
        """The end of a process is told to those that asked for it, also by a server that nobody finds any more."""
        return self._is_found or any(self._waiting.values())

    def _over(self) -> None:
        """From now on nobody finds this server."""
        if self._listener is not None:
            self._place.unlink(missing_ok=True)
            self._listener.close()
            self._listener = None

    def _reap(self) -> None:
        for process in list(self._waiting):
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                connection = self._waiting.pop(process)
                if connection is not None:
                    with contextlib.suppress(OSError), connection:
                        client.send(connection, {"status": status})

    def _answer(self, connection: socket.socket) -> Request | None:
        """As `serve`."""
        connection.settimeout(_PATIENCE_S)
        descriptors: list[int] = []
        try:
            asker, user = client.peer(connection)
            if user != os.getuid():
                return None
            message, descriptors = client.receive(connection, _DESCRIPTORS)
            return None if message is None else self._done(connection, asker, message, descriptors)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
            return None  # who asks has gone, or says what nobody here says
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
            connection.close()

    def _done(
        self, connection: socket.socket, asker: int, message: Message, descriptors: Sequence[int]
    ) -> Request | None:
        """As `serve`. Raises what a message of another form leads to."""
        why, for_all = self._refusal(asker, message, descriptors)
        if for_all:
            self._over()
        if why is not None:
            client.send(connection, {"refused": why})
            return None
        return self._fork(connection, asker, message, descriptors)

    def _refusal(self, asker: int, message: Message, descriptors: Sequence[int]) -> tuple[str | None, bool]:
        """Why a process that is forked would not be what is asked for, and whether that is so for all that will be asked."""
        file = equivalence.changed(self._files)
        if file is not None:
            return f"{file} has changed since it was imported", True
        if rights := equivalence.other_rights(self._rights, equivalence.rights(asker)):
            return f"it has other rights: {', '.join(rights)}", False
        if names := equivalence.other_variables(self._own, self._read, message["environ"], self._given):
            return f"other values of {', '.join(names[:4])}", False
        if message.get("interpreter", sys.executable) != sys.executable:
            return f"another interpreter: {message['interpreter']}", False
        if descriptors and (name := equivalence.shadowed(descriptors[-1])) is not None:
            return f"{name} in the working directory hides a library", False
        return (None, False) if "program" in message else self._refusal_of_worker(message["environ"])

    def _refusal_of_worker(self, environ: Mapping[str, str]) -> tuple[str | None, bool]:
        """As `_refusal`, of a worker of Ray: the first one has Ray imported."""
        if self._first is None:
            try:
                self.load_ray(environ)
            except RuntimeError as error:
                return str(error), True
        first = self._first or {}
        names = {name for name in {*first, *environ} if name.startswith(_READ_BY_RAY)}
        if others := sorted(name for name in names if first.get(name) != environ.get(name)):
            return f"other values of {', '.join(others[:4])}", False
        return None, False

    def _fork(
        self, connection: socket.socket, asker: int, message: Message, descriptors: Sequence[int]
    ) -> Request | None:
        """As `serve`."""
        process = os.fork()
        if process:
            self._waiting[process] = connection.dup() if "program" in message else None
            return None
        try:
            signal.set_wakeup_fd(-1)
            return self._forked(connection, asker, message, descriptors)
        except BaseException:
            os._exit(1)  # else it would go on as a second server

    def _forked(self, connection: socket.socket, asker: int, message: Message, descriptors: Sequence[int]) -> Request:
        """In the process that was forked. Raises OSError."""
        self._leave_behind()
        client.came_from = str(self._place), message
        try:
            _become(asker, message, descriptors, self._made)
        except OSError as error:
            client.send(connection, {"refused": f"it cannot be made alike: {error}"})
            raise
        client.send(connection, {"forked": os.getpid()})
        if not client.is_told_to_go_on(connection):
            raise ConnectionAbortedError
        if (program := message.get("program")) is None:
            return Request(message["argv"], self._base, None)
        return Request(message["argv"], message["path"], Child(program, connection.dup()))

    def _leave_behind(self) -> None:
        for other in self._waiting.values():
            if other is not None:
                other.close()
        assert self._listener is not None
        self._listener.detach()
        for descriptor in self._private:
            os.close(descriptor)


def _become(asker: int, message: Message, descriptors: Sequence[int], made: Mapping[str, str]) -> None:
    """made: variables that imports have set. Raises OSError."""
    os.setpgid(0, 0)  # Ray ends a worker's whole group with it
    equivalence.take_over(asker)
    os.fchdir(descriptors[3])
    for number in (0, 1, 2):
        os.dup2(descriptors[number], number)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    equivalence.take_signals_over(asker)
    os.environ.clear()
    os.environ.update({**made, **message["environ"]})
    for name, value in message.get("since", {}).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _open_streams()
    _seed_anew()
    importlib.invalidate_caches()


def _imported(name: str) -> ModuleType | None:
    """None of a library that Ray may import and that is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        if name in OF_RAY:
            return None
        raise


def _seed_anew() -> None:
    """The generators that each process begins with numbers of its own: torch's too."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def _open_streams() -> None:
    """As Python does when it starts; an import may have wrapped them, and the server's went elsewhere."""
    at_once = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        usual = getattr(sys, f"__{name}__")
        how: dict[str, Any] = {"encoding": usual.encoding, "errors": usual.errors, "closefd": False}
        stream = open(number, "w" if number else "r", **how)  # noqa: SIM115
        if number:
            stream.reconfigure(line_buffering=number == 2 or stream.isatty(), write_through=at_once)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def run(request: Request) -> None:
    """In a process that was forked: what was asked for, from its first line on."""
    sys.argv[:] = request.argv
    child = request.child
    if child is None:
        # Ray has put its own libraries first, as it does when the program imports it.
        first = [path for path in sys.path if path not in request.path]
        sys.path[:] = [*first, os.path.dirname(request.argv[0]), *request.path]  # noqa: PTH120
        runpy.run_path(request.argv[0], run_name="__main__")
        return
    sys.path[:] = request.path
    threading.Thread(target=_end_with, args=(child.parent,), name="parent", daemon=True).start()
    sys.exit(importlib.import_module(child.program).main())


def _end_with(parent: socket.socket) -> None:
    """Once the parent has ended or closes the connection, this process and its group are killed."""
    parent.settimeout(None)
    with contextlib.suppress(OSError):
        parent.recv(1)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    place, listener, owner = sys.argv[1], *map(int, sys.argv[2:4])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # it ends with its owner
        signal.signal(number, signal.SIG_IGN)
    server = Server(Path(place), socket.socket(fileno=listener), owner)
    server.load()
    request = server.serve()
    if request is None:
        os._exit(0)  # at once: to take all modules apart takes a while
    run(request)
