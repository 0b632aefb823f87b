"""Where fork servers listen, and how they are started: one for the workers of a launch, or a pool that the next launches use.

Sockets lie in a folder that only this user may enter, and both sides ask the kernel who the other one is. The name of a socket
says of which interpreter and which copy of this package its server is, and with which variables its workers compute. A server
that was killed leaves its socket behind, which the next one who looks there removes; what it has forked goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.cluster.forkserver import client, likeness
from orchestrator.cluster.forkserver.client import Message
from orchestrator.numerics import cuda

_ROOT = Path(__file__).resolve().parents[3]
_START = "import sys; sys.path.append(sys.argv[-1]); from orchestrator.cluster.forkserver.server import main; main()"
_FOR_EVER = 1e9  # of a server that ends with its launch
_PROBE_S = 10.0


def folder(make: bool = True) -> Path | None:
    """None where there is none that only this user may enter, and none can be made."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    place = Path(given) / "orchestrator" if given else Path(tempfile.gettempdir()) / f"orchestrator-{os.getuid()}"
    with contextlib.suppress(OSError):
        if make:
            place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return place
    return None


def pooled(role: str) -> Path | None:
    """Where a server of the pool listens for this interpreter and this copy of the package; None where there is none."""
    place = folder(make=False)
    file = None if place is None else place / _name(role)
    return file if file is not None and file.exists() else None


def remove_abandoned() -> None:
    """The sockets of servers that are gone."""
    place = folder(make=False)
    for file in () if place is None else place.glob("*.sock"):
        connection = client.connected(str(file))
        if connection is None:
            file.unlink(missing_ok=True)
        else:
            connection.close()


def probe(place: Path) -> Message | None:
    """What the server there says of itself, or `{"refused"}` with why it would not give a process; None where none listens."""
    return _asked(place, {"probe": True, "argv": [], "environ": dict(os.environ)})


def pool() -> list[Message]:
    """What the servers of the pool of this interpreter and this copy of the package say of themselves."""
    found = [_asked(place, {"about": True}) for place in _of_pool()]
    return [each for each in found if each is not None]


def stop() -> int:
    """End the servers of the pool; what they have forked goes on. Returns how many there were."""
    ended = [_asked(place, {"stop": True}) for place in _of_pool()]
    remove_abandoned()
    return sum(each is not None for each in ended)


def start(role: str, idle_s: float, environ: Mapping[str, str]) -> Message:
    """A server of the pool, once it is ready; it says what it is, or `{"failed"}`: its last words."""
    place = folder()
    if place is None:
        return {"failed": "there is no folder for its socket that only this user may enter"}
    remove_abandoned()
    where = place / _name(role)
    try:
        process = _begun(role, where, idle_s, environ=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        return {"failed": f"{where}: {error.strerror or error}"}
    assert process.stdout is not None
    said = []
    with process.stdout as output:
        for line in output:
            if (found := _as_ready(line)) is not None:
                process.returncode = 0  # it is nobody's to wait for
                return found
            said.append(line)  # such as a warning of a library
    process.wait()
    where.unlink(missing_ok=True)
    return {"failed": b"".join(said).decode(errors="replace").strip()}


def _as_ready(line: bytes) -> Message | None:
    """What a server says of itself once it has imported; None of any other line."""
    with contextlib.suppress(ValueError):
        found = json.loads(line)
        if isinstance(found, dict) and {"pid", "role"} <= found.keys():
            return found
    return None


def untried() -> str | None:
    """Why nothing is forked on this machine; None where it is."""
    return None if cuda.driver() is None else "this machine has a GPU of NVIDIA's, with which it has not been tried"


class OfLaunch:
    """The server from which the workers of this process's Ray are forked: that of the pool where it fits, else one that begins
    to import now and ends with this process at the latest. Closed by who has begun it."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._own: tuple[subprocess.Popen[bytes], int] | None = None
        self.place = pooled("worker")
        if self.place is not None:
            answer = probe(self.place)
            if answer is not None and "refused" not in answer:
                return
        self.place = None
        place = folder()
        if place is None:
            return
        remove_abandoned()
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        idle_s = _idle_s_of_pool()
        if idle_s is not None and pooled("worker") is None:  # the next launch has it, too
            self.place = place / _name("worker")
            _begun("worker", self.place, idle_s, **quiet).returncode = 0  # it is nobody's to wait for
            return
        self.place = place / f"{os.getpid()}-{os.urandom(4).hex()}.sock"
        read, write = os.pipe()
        self._own = _begun("worker", self.place, _FOR_EVER, owner=read, **quiet), write
        os.close(read)

    def close(self) -> None:
        """Safe to call twice. What it has forked goes on."""
        own, self._own = self._own, None
        if own is not None and self.place is not None:
            os.close(own[1])
            own[0].kill()  # it may still import
            own[0].wait()
            self.place.unlink(missing_ok=True)


def _begun(
    role: str, place: Path, idle_s: float, owner: int = -1, environ: Mapping[str, str] | None = None, **outputs: Any
) -> subprocess.Popen[bytes]:
    """A server that listens from now on, and answers once it has imported. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        _listen(listener, place)
        descriptors = [listener.fileno(), *([] if owner < 0 else [owner])]
        command = [sys.executable, "-P", *_options(), "-c", _START]
        return subprocess.Popen(
            [*command, role, str(place), str(listener.fileno()), str(owner), str(idle_s), str(_ROOT)],
            cwd="/",
            env=environ,
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            start_new_session=True,
            **outputs,
        )


def _options() -> list[str]:
    """Those of this interpreter, but for the one that each server has."""
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [each for each in options if each != "-P"]


def _listen(listener: socket.socket, place: Path) -> None:
    """The file is there once it listens: one that does not is taken for abandoned. Raises OSError where there is one."""
    unheard = place.with_suffix(f".{os.getpid()}")
    before = os.umask(0o177)
    try:
        listener.bind(str(unheard))
    finally:
        os.umask(before)
    try:
        listener.listen(64)
        os.link(unheard, place)
    finally:
        unheard.unlink()


def _asked(place: Path, message: Message) -> Message | None:
    connection = client.connected(str(place))
    if connection is None:
        return None
    with connection:
        return client.ask(connection, message, _PROBE_S)


def _of_pool() -> list[Path]:
    place = folder(make=False)
    return [] if place is None else sorted(place.glob(f"*-{_key()}*.sock"))


def _idle_s_of_pool() -> float | None:
    """None where there is no pool."""
    place = pooled("driver")
    found = None if place is None else _asked(place, {"about": True})
    return None if found is None else float(found["idle_s"])


def _key() -> str:
    made_of = json.dumps([sys.executable, sys.prefix, sys.version, str(_ROOT)])
    return hashlib.sha256(made_of.encode()).hexdigest()[:16]


def _name(role: str) -> str:
    """Workers of runs that compute otherwise, such as under `run.arithmetic: portable`, are another server's."""
    if role != "worker":
        return f"{role}-{_key()}.sock"
    variables = json.dumps(sorted((name, value) for name, value in os.environ.items() if likeness.is_read_by_c(name)))
    return f"{role}-{_key()}-{hashlib.sha256(variables.encode()).hexdigest()[:8]}.sock"
