"""A private Ray on this machine, started for one run and gone with it.

`address="local"` is explicit, because a plain `ray.init()` joins whatever cluster RAY_ADDRESS or a left-over file names. Its
files lie in a folder of their own that is removed at the end; the folder of a driver that was killed is removed by the next
start. Actors are reached only with a token that exists in this process's environment, so other users of the machine
cannot run code here.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from orchestrator.cluster.sessions.environment import enter, prepare_environment
from orchestrator.errors import ClusterUnavailable

_PREFIX = "orc-"
_VITAL = {"raylet": "the raylet of the private Ray", "gcs_server": "the head (gcs_server) of the private Ray"}
_OBJECT_STORE_BYTES = 128 * 2**20  # only the trained weights travel through it; gradients have their own way
_SOCKET_PATH_LIMIT = 40  # characters of the folder; Ray adds some 65, and a Unix socket's path ends at 107


class LocalRay:
    """A context manager. cpus: how many CPUs the actors will ask for, whether or not the machine has them."""

    def __init__(self, cpus: float) -> None:
        self._cpus = cpus
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        _remove_abandoned()
        self._folder = _new_folder()
        prepare_environment(None)
        try:
            with _fewer_processes():
                enter(
                    "local",
                    num_cpus=max(1, math.ceil(self._cpus)),
                    include_dashboard=False,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    _temp_dir=str(self._folder),
                )
        except Exception as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise ClusterUnavailable(
                f"Ray could not be started: {str(error).splitlines()[0]}",
                "look at memory, disk and open files of this machine",
            ) from error
        return self

    def trouble(self) -> str | None:
        """Which of its two processes has ended by itself; no member outlives them for long, and none can be started."""
        from ray._private import worker

        node = worker._global_node
        dead: set[str] = set() if node is None else {kind for kind, _ in node.dead_processes()}
        return next((f"{name} has ended" for kind, name in _VITAL.items() if kind in dead), None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        ray.shutdown()
        if self._folder is not None:
            _kill_users(self._folder)  # where the raylet was killed, Ray does not reach its helpers
            shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def _fewer_processes() -> Iterator[None]:
    """Within this a Ray starts without the autoscaler's monitor, the monitor of logs and the dashboard's server: it has one
    node, logs that nobody follows and no dashboard, and the three cost seconds of a processor at the start of each run. Ray has
    no public way to leave them out; a Ray that starts them in another way starts them."""
    from ray._private import node, services

    helpers: list[tuple[Any, str, object]] = [
        (node.Node, "start_monitor", None),
        (node.Node, "start_log_monitor", None),
        (services, "start_api_server", (None, None)),
    ]
    usual = [(place, name, getattr(place, name), answer) for place, name, answer in helpers if hasattr(place, name)]
    for place, name, _, answer in usual:
        setattr(place, name, lambda *_arguments, _answer=answer, **_options: _answer)
    try:
        yield
    finally:
        for place, name, start, _ in usual:
            setattr(place, name, start)


def _new_folder() -> Path:
    """A folder whose name carries this process's id, so that a later start knows when it is abandoned."""
    parent = tempfile.gettempdir()
    if len(parent) > _SOCKET_PATH_LIMIT - 20:
        parent = "/tmp"
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))


def _remove_abandoned() -> None:
    """Folders of drivers that are gone, and the helpers of their Ray, which would linger for a minute or two."""
    for parent in {tempfile.gettempdir(), "/tmp"}:
        for folder in Path(parent).glob(f"{_PREFIX}*-*"):
            pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
            with contextlib.suppress(OSError):
                if pid.isdigit() and folder.stat().st_uid == os.getuid() and not Path(f"/proc/{pid}").exists():
                    _kill_users(folder)
                    shutil.rmtree(folder, ignore_errors=True)


def _kill_users(folder: Path) -> None:
    """Kill this user's other processes that hold a file of the folder open: Ray's helpers write their logs there."""
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        with contextlib.suppress(OSError):
            if any(str(file.readlink()).startswith(f"{folder}/") for file in (process / "fd").iterdir()):
                os.kill(int(process.name), signal.SIGKILL)
