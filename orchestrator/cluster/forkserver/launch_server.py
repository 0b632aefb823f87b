"""The address of a launch's fork server, and its start and end.

Sockets lie in a folder that only this user may enter, and both sides ask the kernel who the other one is. A server that was
killed leaves its socket behind, which the next launch removes; what it has forked goes on.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from orchestrator.cluster.forkserver import client

_ROOT = Path(__file__).resolve().parents[3]
# The folder of this package has others beside it, such as `pipelines`, which would be found in place of folders of the user's
# project that have no __init__.py. So it is searched only where the package is found in no other way.
_START = """
import sys
try:
    import orchestrator
except ModuleNotFoundError:
    sys.path.append(sys.argv[-1])
from orchestrator.cluster.forkserver.server import main
main()
"""


def folder() -> Path | None:
    """None where there is none that only this user may enter, and none can be made."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    place = Path(given) / "orchestrator" if given else Path(tempfile.gettempdir()) / f"orchestrator-{os.getuid()}"
    with contextlib.suppress(OSError):
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return place
    return None


def remove_abandoned(place: Path) -> None:
    """The sockets of servers that are gone. place: the folder they lie in."""
    for file in place.glob("*.sock"):
        connection = client.connected(str(file))
        if connection is None:
            file.unlink(missing_ok=True)
        else:
            connection.close()


class LaunchServer:
    """The server from which the workers of this process's Ray are forked. It begins to import now, and ends with this process
    at the latest. Closed by who has begun it."""

    def __init__(self) -> None:
        """Raises OSError."""
        self.place: Path | None = None
        self._own: tuple[subprocess.Popen[bytes], int] | None = None
        place = folder()
        if place is None:
            return
        remove_abandoned(place)
        self.place = place / f"{os.getpid()}-{os.urandom(4).hex()}.sock"
        read, write = os.pipe()
        try:
            self._own = _begun(self.place, read), write
        except OSError:
            os.close(write)
            raise
        finally:
            os.close(read)

    def close(self) -> None:
        """Safe to call twice. Its children go on."""
        own, self._own = self._own, None
        if own is not None and self.place is not None:
            os.close(own[1])
            own[0].kill()  # it may still import
            own[0].wait()
            self.place.unlink(missing_ok=True)


def _begun(place: Path, owner: int) -> subprocess.Popen[bytes]:
    """A server that listens from now on, and answers once it has imported. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        _listen(listener, place)
        return subprocess.Popen(
            [
                *(sys.executable, "-P", *_options(), "-c", _START),
                *(str(place), str(listener.fileno()), str(owner), str(_ROOT)),
            ],
            cwd="/",
            env={**os.environ, **_search_path()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[listener.fileno(), owner],
            start_new_session=True,
        )


def _search_path() -> dict[str, str]:
    """PYTHONPATH without folders that are relative to the working directory: that of the server is another one."""
    given = os.environ.get("PYTHONPATH")
    if not given:
        return {}
    return {"PYTHONPATH": os.pathsep.join(str(Path(each).absolute()) for each in given.split(os.pathsep))}


def _options() -> list[str]:
    """Those of this interpreter, but for the one that each server has."""
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [each for each in options if each != "-P"]


def _listen(listener: socket.socket, place: Path) -> None:
    """Bind the socket, and listen before its file appears, since a file on which nobody listens counts as abandoned. Raises
    OSError where there is one already."""
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
