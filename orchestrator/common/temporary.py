"""Temporary folders. If a process is killed, its own stay behind, until another of this user makes one in the same place.

A folder is in use while a process holds the lock of a file in it. Ids of processes would not tell: containers that share the
place have each their own. On a file system without locks an abandoned folder stays.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.common import locks

PREFIX = ".orchestrator-tmp-"
_LOCK, _CONTENT = "lock", "in"


@contextmanager
def folder(parent: Path | None = None, prefix: str = PREFIX) -> Iterator[Path]:
    """An empty folder for the block, which only this user may enter. parent: where; the system's place for temporary files by
    default. prefix: of its name; what begins with it there is nothing else."""
    place = Path(tempfile.gettempdir() if parent is None else parent)
    _remove_abandoned(place, prefix)
    own, lock = _made(place, prefix)
    try:
        content = own / _CONTENT
        content.mkdir()
        yield content
    finally:
        shutil.rmtree(own, ignore_errors=True)
        os.close(lock)


def _made(place: Path, prefix: str) -> tuple[Path, int]:
    """With its lock. Another process may take it for abandoned before it is locked, and remove it."""
    while True:
        own = Path(tempfile.mkdtemp(dir=place, prefix=prefix))
        file = own / _LOCK
        try:
            lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue
        if _is_locked(lock) and locks.is_at(file, lock):
            return own, lock
        os.close(lock)


def _is_locked(lock: int) -> bool:
    try:
        return locks.try_lock(lock)
    except OSError:  # no locks here: nobody else can take it either
        return True


def _remove_abandoned(place: Path, prefix: str) -> None:
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(prefix):
                with contextlib.suppress(OSError):  # just removed, or in use
                    _remove_if_abandoned(Path(entry.path))


def _remove_if_abandoned(own: Path) -> None:
    found = own.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return
    try:
        lock = os.open(own / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        own.rmdir()  # its maker was killed before it wrote anything, or is about to
        return
    try:
        if locks.try_lock(lock):
            shutil.rmtree(own, ignore_errors=True)
    finally:
        os.close(lock)
