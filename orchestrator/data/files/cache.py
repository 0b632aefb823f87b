"""Files from elsewhere on the disk of a node: by content, checked when they arrive, never more bytes than the limit.

All processes of a node share the folder; locks of the kernel (`flock`), which end with their process, say what each is doing:

    MD5          a whole file; who reads it holds a shared lock, who removes it needs the exclusive one
    MD5.part     room that is taken for a file; who fetches it holds the exclusive lock, and without one it is left over
    room         held while it is decided who has room
    taken        how many bytes that are at most, and how many decisions ago all files were counted
    wanted       touched by a process that finds no room: whoever keeps files open gives up those that it does not read now
    wished       the same for files that are fetched ahead: it gives up those that it has not read for a while

A file of an earlier boot is hashed when it is held first, and fetched again if it is damaged.

The least recently used file that nobody keeps open makes room for another. All files are counted now and then, since thousands
take a tenth of a second, and where room is short. A few more are removed then than have to be. A process that needs space
first closes its own files, then waits; so two processes cannot deadlock. Every wait, for room, for another process or for a
store, is in `waiting.py`, where it is told and shows that it lives.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.common import locks
from orchestrator.common.figures import megabytes
from orchestrator.data.files import waiting
from orchestrator.data.files.manifest import File, is_md5
from orchestrator.data.files.places import Place
from orchestrator.data.files.waiting import Attempt, Wait
from orchestrator.errors import ConfigurationError, DataDamaged, RunFailed, unusable

_PART = ".part"
_CHUNK = 1 << 20
ROOM, WANTED, WISHED = "room", "wanted", "wished"
_TAKEN = "taken"
_COUNTED_EVERY = 1000  # decisions: files of an older version are in no number
_SPARE = 20  # the part of the limit that is removed beyond what has to be
_LONG_AGO = 10 * 365 * 86400 * 10**9  # in nanoseconds: a file that nobody expects is older than any that is
STORE_TIMEOUT_S = 600.0
_STILL_S = 60.0  # without a byte, after which who fetches ahead leaves a file to who needs it


class NoRoom(Exception):
    """The cache is full of what is being read."""


@dataclass(frozen=True)
class HeldFile:
    """A file that nobody removes until it is closed."""

    path: Path
    descriptor: int

    def close(self) -> None:
        os.close(self.descriptor)


class Cache:
    """The cache of a node, as one process uses it. limit: in bytes; patience_s: for how long a place that does not answer is
    asked again. Raises ConfigurationError for a folder that cannot be one."""

    def __init__(self, folder: Path, limit: int, patience_s: float = STORE_TIMEOUT_S) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unusable(f"data.cache_folder: {folder}", error, error.strerror or str(error)) from error
        self.folder = folder
        self.limit = limit
        self._patience_s = patience_s

    def hold(self, file: File, place: Place, *, wait: bool = True) -> HeldFile:
        """The file of this content, fetched where it is not there. Raises DataDamaged for one that is not what the manifest
        says, or cannot be had; NoRoom, without `wait`, where all room is in use."""
        fetched = False
        while True:
            with contextlib.suppress(FileNotFoundError):
                held = self._held(self._at(file))
                waiting.count(file.size, fetched=fetched)
                return held
            with waiting.undisturbed():
                fetched = self._fetch(file, place, _Reader(self, file, place, wait))

    def bring(self, file: File, place: Place) -> bool:
        """Fetch a file that will be read later, unless it is there, or on its way, or there is no room; returns whether this
        process has fetched it. Raises OSError, where the place does not answer, at once."""
        return not self.has(file) and self._fetch(file, place, _Ahead(self, file, place))

    def has(self, file: File) -> bool:
        return self._at(file).exists()

    def expects(self, file: File) -> None:
        """It goes after all that nobody expects."""
        self._date(file, time.time_ns())

    def forgets(self, file: File) -> None:
        """It goes before all that is expected."""
        self._date(file, time.time_ns() - _LONG_AGO)

    def sign(self, name: str) -> int:
        """When a process was last seen to want room, or to wish for it; 0: never."""
        try:
            return (self.folder / name).stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def call(self, name: str) -> None:
        (self.folder / name).touch()
        _date(self.folder / name, time.time_ns())

    def _at(self, file: File, suffix: str = "") -> Path:
        if not is_md5(file.md5):
            raise DataDamaged(
                f"{file.path}: {file.md5!r} is no MD5, which has 32 hexadecimal digits", REMEDY, code="data.not-md5"
            )
        return self.folder / f"{file.md5}{suffix}"

    def _date(self, file: File, at: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            if not _is_of_an_earlier_boot(self._at(file).stat()):  # it would look like one of this boot
                _date(self._at(file), at)

    def _held(self, path: Path) -> HeldFile:
        """Raises FileNotFoundError."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):
                locks.restrict(descriptor, self.folder)  # of an older version, which everybody could lock
            locks.lock(descriptor, shared=True, look=_wait_for(path).look)
            status = os.fstat(descriptor)
            if not status.st_nlink:
                raise FileNotFoundError(path)
            if _is_of_an_earlier_boot(status) and not _is_whole(descriptor, path):
                if locks.is_at(path, descriptor):
                    path.unlink(missing_ok=True)
                raise FileNotFoundError(path)
            _date(descriptor, time.time_ns())
        except BaseException:
            os.close(descriptor)
            raise
        return HeldFile(path, descriptor)

    def _fetch(self, file: File, place: Place, caller: _Caller) -> bool:
        """Whether it was fetched by this process, and not by another one that has been waited for."""
        path = self._at(file, _PART)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)  # somebody may have cleaned up meanwhile
            descriptor = self._opened(path)
        except OSError as error:
            is_link = error.errno == errno.ELOOP
            said = "it is a link, which only others put there" if is_link else error.strerror or str(error)
            raise unusable(f"data.cache_folder: {path}", error, said) from error
        try:
            if not caller.locks(path, descriptor) or not locks.is_at(path, descriptor):
                return False  # another process has it, or had it, and has finished or given up
            if self.has(file):  # or had finished before this one began
                path.unlink()
                return False
            try:
                if caller.takes_room(descriptor):
                    _check(file, place, caller.copies(descriptor))
                    with self._deciding():  # who counts files meets it under one of its names
                        path.replace(self._at(file))
                    return True
                path.unlink()
                return False
            except BaseException:
                os.ftruncate(descriptor, 0)
                path.unlink(missing_ok=True)
                raise
        finally:
            os.close(descriptor)

    def _opened(self, path: Path) -> int:
        """To read and to write. Raises OSError for a link: what is behind it would be overwritten."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with contextlib.suppress(OSError):
            locks.restrict(descriptor, self.folder)
        return descriptor

    def _has_taken(self, descriptor: int, size: int) -> bool:
        """Whether there was room for so many bytes, which they have now."""
        with self._deciding():
            if not self._made_room(size):
                return False
            os.ftruncate(descriptor, 0)
            try:
                if size:
                    os.posix_fallocate(descriptor, 0, size)
            except OSError as error:
                raise RunFailed(
                    f"data.cache_folder: {self.folder} cannot take {megabytes(size)}: {error.strerror}",
                    "make room there, lower data.cache_gb to what its disk has, or name another folder; go on with resume=",
                    code="data.cache-disk",
                ) from error
            return True

    def _deciding(self) -> AbstractContextManager[None]:
        room = self.folder / ROOM
        return locks.held(room, _wait_for(room).look, signed=False)  # its size would count

    def _made_room(self, size: int) -> bool:
        """Whether there are so many bytes left, which count as taken then. While it is this process that decides."""
        taken, decisions = self._taken()
        if taken + size > self.limit or decisions == _COUNTED_EVERY:
            taken, decisions = self._left(size), 0
        has_room = taken + size <= self.limit
        self._note_taken(taken + size * has_room, decisions + 1)
        return has_room

    def _taken(self) -> tuple[int, int]:
        """Bytes, and since how many decisions. Files that are gone since count still."""
        try:
            taken, decisions = map(int, (self.folder / _TAKEN).read_bytes().split())
        except (OSError, ValueError):  # none yet, or what a power cut has left
            return 0, _COUNTED_EVERY
        return taken, decisions

    def _note_taken(self, taken: int, decisions: int) -> None:
        try:
            descriptor = self._opened(self.folder / _TAKEN)
        except OSError:  # another user's, or a full disk, which what is to lie there tells: all are counted each time
            return
        try:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, b"%d %d" % (taken, decisions), 0)
        finally:
            os.close(descriptor)

    def _left(self, size: int) -> int:
        """The bytes of all files, after the oldest were removed where they leave no room for so many more."""
        files = self._files()
        taken, spare = sum(files.values()), self.limit // _SPARE
        if taken + size <= self.limit:
            return taken
        for path, own in files.items():
            has_to_go = taken + size > self.limit
            if not has_to_go and own > spare:
                break
            if _removed(path):
                taken -= own
                spare -= 0 if has_to_go else own
        return taken

    def _files(self) -> dict[str, int]:
        """With their bytes, the least recently used first. Others may lie there too, which are somebody's own."""
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if is_md5(entry.name.removesuffix(_PART)):
                        status = entry.stat()
                        found.append((status.st_mtime_ns, entry.path, status.st_size))
        return {path: size for _, path, size in sorted(found)}


@dataclass(frozen=True)
class _Caller:
    """The caller's conduct if it cannot have a file at once."""

    cache: Cache
    file: File
    place: Place

    def locks(self, path: Path, descriptor: int) -> bool:
        """Whether it is for this process to fetch the file."""
        raise NotImplementedError

    def takes_room(self, descriptor: int) -> bool:
        raise NotImplementedError

    def copies(self, descriptor: int) -> tuple[int, str]:
        """(bytes, MD5) of what has arrived. Raises OSError, DataDamaged."""
        raise NotImplementedError

    def _copied(self, descriptor: int, attempt: Attempt) -> tuple[int, str]:
        own = os.dup(descriptor)  # whoever waits may give up, and close its own, while this writes
        try:
            return _written(own, self.place.chunks(self.file.where), attempt)
        finally:
            os.close(own)

    @property
    def _where(self) -> str:
        return self.place.describe(self.file.path)


class _Ahead(_Caller):
    """It goes without."""

    def locks(self, path: Path, descriptor: int) -> bool:  # noqa: ARG002
        return locks.try_lock(descriptor)

    def takes_room(self, descriptor: int) -> bool:
        if self.cache._has_taken(descriptor, self.file.size):
            return True
        self.cache.call(WISHED)
        return False

    def copies(self, descriptor: int) -> tuple[int, str]:
        return waiting.tried(self._where, partial(self._copied, descriptor), min(_STILL_S, self.cache._patience_s))


@dataclass(frozen=True)
class _Reader(_Caller):
    """It waits, and somebody is told. waits: for room, too."""

    waits: bool

    def locks(self, path: Path, descriptor: int) -> bool:
        """Raises NoRoom, unless it `waits`, where somebody wants room: that may be who fetches this file."""
        wait = Wait(lambda: f"{self._where}, which {locks.holder(path)} fetches")
        wanted = self.cache.sign(WANTED)
        while locks.is_at(path, descriptor):  # else it has come, and may be locked by who reads it
            if locks.try_lock(descriptor):
                return True
            if not self.waits and self.cache.sign(WANTED) != wanted:
                raise NoRoom(self.file.path)
            wait.look()
        return False

    def takes_room(self, descriptor: int) -> bool:
        """Raises ConfigurationError, NoRoom."""
        file, limit = self.file, self.cache.limit
        if file.size > limit:
            raise ConfigurationError(
                [f"data.cache_gb: {megabytes(limit)} do not hold {file.path}, which has {megabytes(file.size)}"],
                "raise it",
                code="data.cache-file",
            )
        wait = Wait(f"room in the cache of {megabytes(limit)} for {self._where}")
        while not self.cache._has_taken(descriptor, file.size):
            if not self.waits:
                raise NoRoom(file.path)
            self.cache.call(WANTED)
            wait.look()
        return True

    def copies(self, descriptor: int) -> tuple[int, str]:
        try:
            return waiting.until(self._where, partial(self._copied, descriptor), self.cache._patience_s)
        except (FileNotFoundError, PermissionError) as error:
            raise DataDamaged(f"{self._where} cannot be read: {error}", REMEDY, code="data.file-unreadable") from error


def _check(file: File, place: Place, found: tuple[int, str]) -> None:
    """Raises DataDamaged."""
    if found != (file.size, file.md5):
        raise DataDamaged(
            f"{place.describe(file.path)} has {found[0]} bytes with the MD5 {found[1]}; its manifest says {file.size} "
            f"bytes with {file.md5}",
            REMEDY,
            code="data.file-altered",
        )


REMEDY = "put back what was there, or write the manifest anew (python -m orchestrator index=FOLDER)"


def passed_on(chunks: Iterator[bytes], write: Callable[[bytes], object], attempt: Attempt) -> tuple[int, str]:
    """(bytes, MD5) of what was written, until the attempt is over. Raises what the chunks and `write` raise."""
    digest, size = hashlib.md5(usedforsecurity=False), 0
    for chunk in chunks:
        if attempt.over:
            break
        attempt.moves()
        digest.update(chunk)
        size += len(chunk)
        write(chunk)
    return size, digest.hexdigest()


def _written(descriptor: int, chunks: Iterator[bytes], attempt: Attempt) -> tuple[int, str]:
    """(bytes, MD5) of what was written to the beginning of a file, which ends there."""

    def write(chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            view = view[os.write(descriptor, view[:_CHUNK]) :]

    os.lseek(descriptor, 0, os.SEEK_SET)
    return passed_on(chunks, write, attempt)


def _date(path: Path | int, at: int) -> None:
    os.utime(path, ns=(at, at))  # the kernel's own times come in steps of milliseconds


def _is_of_an_earlier_boot(status: os.stat_result) -> bool:
    """Whether it was last held before this machine came up. After a power cut it may have zeros in place of its content, which
    is not forced to the disk: most files are gone before they would get there."""
    return status.st_ctime_ns < time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _is_whole(descriptor: int, path: Path) -> bool:
    """Whether a file has the content of its name."""
    digest, wait, at = hashlib.md5(usedforsecurity=False), Wait(f"the hash of {path}"), 0
    while chunk := os.pread(descriptor, _CHUNK, at):
        digest.update(chunk)
        at += len(chunk)
        wait.live()
    return digest.hexdigest() == path.name


def _wait_for(path: Path) -> Wait:
    return Wait(lambda: f"{path}, which {locks.holder(path)} holds")


def _removed(path: str) -> bool:
    """Whether it is, since nobody had a lock on it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        had = locks.try_lock(descriptor)
        if had:
            Path(path).unlink(missing_ok=True)
        return had
    finally:
        os.close(descriptor)


_DEFAULT_BYTES = 10**10
_used: dict[str, Any] = {"limit": _DEFAULT_BYTES, "folder": None, "patience_s": STORE_TIMEOUT_S}


def use(limit: int, folder: str | None, patience_s: float = STORE_TIMEOUT_S) -> None:
    """From now on files from elsewhere go through such a cache in this process. folder: None for the user's own."""
    _used.update(limit=limit, folder=folder, patience_s=patience_s)


def used() -> tuple[int, str | None, float]:
    """As `use` takes it."""
    return _used["limit"], _used["folder"], _used["patience_s"]


def patience_s() -> float:
    return float(_used["patience_s"])


def current() -> Cache:
    """Raises ConfigurationError."""
    return Cache(folder(), _used["limit"], _used["patience_s"])


def folder() -> Path:
    """Raises ConfigurationError."""
    if _used["folder"] is not None:
        try:
            return Path(_used["folder"]).expanduser()
        except RuntimeError as error:
            raise unusable(
                f"data.cache_folder: {_used['folder']}", error, "the user behind ~ has no home here"
            ) from error
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "orchestrator" / "files"
