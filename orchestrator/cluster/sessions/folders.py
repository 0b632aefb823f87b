"""The folder of a Ray that is ours: its name carries the id of the process that started it, so that a later start knows when
it is abandoned. It leaves the folders of other containers alone, which may share the place.

Ray lets everybody write into the folder that it is given (0777), and so into its logs and among its sockets. It is given one
that lies in another, which only this user may enter.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

from orchestrator.common import locks, processes
from orchestrator.common.figures import sized
from orchestrator.errors import ClusterUnavailable

_PREFIX = "orc-"
_NAMESPACE = "namespace"  # a file that says where the id counts
MEMBERS_LOCK = "members.lock"  # on which members that may outlive their driver hold a lock (`actors.orphaned`)
_HANDING_OVER_S = 120.0
_BEGINNING_S = 60.0
_LONGEST_PARENT = 18  # bytes; with our two folders and what Ray adds a Unix socket's path ends at 107
_OF_RAY = "r"
# A Ray that has less does not start. Four workers were seen to take 190 kB and 54 files.
_ROOM_BYTES = 1_000_000
_ROOM_FILES = 100


def new() -> Path:
    """Nobody else may enter it. Raises ClusterUnavailable where there is no room, OSError."""
    parent = tempfile.gettempdir()
    if len(parent) > _LONGEST_PARENT or not (parent.isascii() and parent.isprintable()):  # Ray takes no others
        parent = "/tmp"
    _require_room(parent)
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
    (folder / _NAMESPACE).write_text(processes.namespace())
    return folder


def _require_room(parent: str) -> None:
    found = os.statvfs(parent)
    room = found.f_bavail * found.f_frsize
    lacks_files = found.f_files > 0 and found.f_favail < _ROOM_FILES  # some file systems do not count files: 0 of 0
    if room < _ROOM_BYTES or lacks_files:
        left = f"{found.f_favail} files" if room >= _ROOM_BYTES else sized(room)
        raise ClusterUnavailable(
            f"Ray could not be started: {parent} has room for {left}",
            "make room there, or name another place with TMPDIR",
            code="ray.no-room",
        )


def of_ray(folder: Path) -> Path:
    """The one that Ray is given, in a folder that `new` has made."""
    return folder / _OF_RAY


def logs(folder: Path) -> Path | None:
    """The folder of the logs of Ray; None where it has not begun to write any."""
    return next(of_ray(folder).glob("session_[0-9]*/logs"), None)


def remove_abandoned() -> None:
    """Folders of processes that are gone, and the helpers of their Ray, which would linger for a minute or two."""
    for parent in {tempfile.gettempdir(), "/tmp"}:
        for folder in Path(parent).glob(f"{_PREFIX}*-*"):
            pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
            with contextlib.suppress(OSError):
                is_ours = pid.isdecimal() and not folder.is_symlink() and folder.stat().st_uid == os.getuid()
                if is_ours and not _lives(int(pid), folder) and not _is_handing_over(folder / MEMBERS_LOCK):
                    remove(folder)


def _lives(pid: int, folder: Path) -> bool:
    """True, too, of a process that nobody here can see, or that has made the folder just now and not yet said where its id
    counts."""
    if processes.lives(pid):
        return True
    file = folder / _NAMESPACE
    if not file.exists():
        return time.time() - folder.stat().st_mtime < _BEGINNING_S
    return file.read_text() != processes.namespace()


def _is_handing_over(lock: Path) -> bool:
    """Whether members write what they have, for a driver that ended just now."""
    return locks.is_held(lock, shared=True) and time.time() - lock.stat().st_mtime < _HANDING_OVER_S


def remove(folder: Path) -> None:
    """With the processes that use it: where a raylet was killed or never came up, Ray does not reach its helpers."""
    _kill_users(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _kill_users(folder: Path) -> None:
    """Kill this user's other processes that write in the folder: Ray's helpers have their logs there. One that reads is spared:
    it may be another launch, which removes the folder at the same moment."""
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        with contextlib.suppress(OSError):
            if any(_writes(process, file, folder) for file in (process / "fd").iterdir()):
                os.kill(int(process.name), signal.SIGKILL)


def _writes(process: Path, file: Path, folder: Path) -> bool:
    """file: one that the process has open, in /proc. Raises OSError."""
    if not str(file.readlink()).startswith(f"{folder}/"):
        return False
    fields = dict(line.split(":", 1) for line in (process / "fdinfo" / file.name).read_text().splitlines())
    return int(fields["flags"], 8) & os.O_ACCMODE != os.O_RDONLY
