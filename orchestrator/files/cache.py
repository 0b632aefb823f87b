"""Files from elsewhere on the disk of a node: by content, checked when they arrive, never more bytes than the limit.

All processes of a node share the folder; locks of the kernel (`flock`), which end with their process, say what each is doing:

    MD5          a whole file; who reads it holds a shared lock, who removes it needs the exclusive one
    MD5.part     room that is taken for a file; who fetches it holds the exclusive lock, and without one it is left over
    room         held while it is decided who has room

The least recently used file that nobody reads makes room for another. Where all are being read, who needs room has given up
what it held itself, and waits for one of the others; so somebody always goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigurationError, DataDamaged
from orchestrator.files.manifest import File
from orchestrator.files.places import Place
from orchestrator.values import megabytes

_PART = ".part"
_CHUNK = 1 << 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0
Tell = Callable[[str], None]


class NoRoom(Exception):
    """The cache is full of what is being read."""


@dataclass(frozen=True)
class Held:
    """A file that nobody removes until it is closed."""

    path: Path
    descriptor: int

    def close(self) -> None:
        os.close(self.descriptor)


class Cache:
    """limit: in bytes; patience_s: for how long a place that does not answer is asked again; tell: hears that it is. Raises
    ConfigurationError for a folder that cannot be one."""

    def __init__(self, folder: Path, limit: int, patience_s: float = 600.0, tell: Tell = lambda _: None) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError([f"data.cache_folder: {folder} cannot be used: {error.strerror}"]) from error
        self._folder = folder
        self._limit = limit
        self._patience_s = patience_s
        self._tell = tell

    def hold(self, file: File, place: Place, *, wait: bool = True) -> Held:
        """The file of this content, fetched where it is not there. Raises DataDamaged for one that is not what the manifest
        says, or cannot be had; NoRoom, without `wait`, where all room is in use."""
        while True:
            with contextlib.suppress(FileNotFoundError):
                return self._held(self._folder / file.md5)
            self._fetch(file, place, wait)

    def has(self, file: File) -> bool:
        return (self._folder / file.md5).exists()

    def _held(self, path: Path) -> Held:
        """Raises FileNotFoundError."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if not os.fstat(descriptor).st_nlink:
            os.close(descriptor)
            raise FileNotFoundError(path)
        now = time.time_ns()  # the kernel's own times come in steps of milliseconds
        os.utime(descriptor, ns=(now, now))
        return Held(path, descriptor)

    def _fetch(self, file: File, place: Place, wait: bool) -> None:
        """By this process, or by another one that it waits for."""
        path = self._folder / f"{file.md5}{_PART}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not _is_at(path, descriptor):
                return  # another process had it, and has finished or given up
            if self.has(file):  # or had finished before this one began
                path.unlink()
                return
            try:
                self._take_room(descriptor, file, wait)
                self._copy(descriptor, file, place)
                path.replace(self._folder / file.md5)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        finally:
            os.close(descriptor)

    def _take_room(self, descriptor: int, file: File, wait: bool) -> None:
        if file.size > self._limit:
            raise ConfigurationError(
                [f"data.cache_gb: {megabytes(self._limit)} do not hold {file.path}, which has {megabytes(file.size)}"],
                "raise it",
            )
        while True:
            with self._deciding():
                if self._made_room(file.size):
                    os.ftruncate(descriptor, 0)
                    if file.size:
                        os.posix_fallocate(descriptor, 0, file.size)
                    return
                in_use = [path for path in self._files() if not _is_at(path, descriptor)]
            if not wait:
                raise NoRoom(file.path)
            if in_use:
                _wait_for(in_use[0])

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        descriptor = os.open(self._folder / "room", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _made_room(self, size: int) -> bool:
        files = {path: path.stat().st_size for path in self._files()}
        for path in list(files):
            if sum(files.values()) + size <= self._limit:
                break
            if _removed(path):
                del files[path]
        return sum(files.values()) + size <= self._limit

    def _files(self) -> list[Path]:
        """The least recently used first."""
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.name != "room":
                        found.append((entry.stat().st_mtime_ns, entry.path))
        return [Path(path) for _, path in sorted(found)]

    def _copy(self, descriptor: int, file: File, place: Place) -> None:
        began, pause = time.monotonic(), _FIRST_PAUSE_S
        while True:
            try:
                found = _written(descriptor, place.chunks(file.path))
                break
            except (FileNotFoundError, PermissionError) as error:
                raise DataDamaged(f"{place.describe(file.path)} cannot be read: {error}", _REMEDY) from error
            except OSError as error:
                if time.monotonic() - began + pause > self._patience_s:
                    raise DataDamaged(
                        f"{place.describe(file.path)} could not be fetched for {self._patience_s:.0f} s: {error}",
                        "see to the store and the way to it, and go on with resume=",
                    ) from error
                self._tell(f"{place.describe(file.path)} does not answer ({error}); asked again in {pause:g} s")
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        expected = file.size, file.md5
        if found != expected:
            raise DataDamaged(
                f"{place.describe(file.path)} has {found[0]} bytes with the MD5 {found[1]}; its manifest says {file.size} "
                f"bytes with {file.md5}",
                _REMEDY,
            )


_REMEDY = "put back what was there, or write the manifest anew (python -m orchestrator index=FOLDER)"


def _written(descriptor: int, chunks: Iterator[bytes]) -> tuple[int, str]:
    """(bytes, MD5) of what was written to the beginning of a file, which ends there."""
    digest = hashlib.md5(usedforsecurity=False)
    size = 0
    os.lseek(descriptor, 0, os.SEEK_SET)
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
        view = memoryview(chunk)
        while view:
            view = view[os.write(descriptor, view[:_CHUNK]) :]
    return size, digest.hexdigest()


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


@contextmanager
def _locked(path: Path, how: int) -> Iterator[bool]:
    """Whether the exclusive lock of a file was had; also where the file is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        fcntl.flock(descriptor, how)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


def _removed(path: Path) -> bool:
    """Whether it is, since nobody had a lock on it."""
    with _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB) as had:
        if had:
            path.unlink(missing_ok=True)
        return had


def _wait_for(path: Path) -> None:
    with _locked(path, fcntl.LOCK_EX):
        pass


_DEFAULT_BYTES = 10**10
_used: dict[str, Any] = {"limit": _DEFAULT_BYTES, "folder": None, "tell": lambda _: None}


def use(limit: int, folder: str | None, tell: Tell = lambda _: None) -> None:
    """From now on files from elsewhere go through such a cache in this process. folder: None for the user's own."""
    _used.update(limit=limit, folder=folder, tell=tell)


def current() -> Cache:
    """Raises ConfigurationError."""
    home = os.environ.get("XDG_CACHE_HOME")
    folder = _used["folder"] or (Path(home) if home else Path.home() / ".cache") / "orchestrator" / "files"
    return Cache(Path(folder), _used["limit"], tell=_used["tell"])
