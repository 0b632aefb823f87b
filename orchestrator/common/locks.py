"""Locks of the kernel (`flock`), which end with their process. Every lock of this program is taken here.

    held(path)             one process at a time is in the block, and the others wait
    take(path)             at once or not at all
    is_held(path)          whether anybody has it
    lock(fd), try_lock(fd) of a file that is open already, for itself or shared

`flock` asks for no right to write, so whoever may read a file may lock it. A file that is a lock is therefore for its owner
alone (0600), and else for those only who may write the folder that it lies in: they could replace it. The one of an older
version, which all could read, becomes such a file when it is taken.

Nobody waits in the kernel, where Python hears no signal: it is looked again and again. A wait that lasts says who has the lock,
and ends when the file is removed, since a lock that has no name any more is none.

It keeps no order among those who wait, and ends no wait that nobody interrupts. Source: flock(2); "/proc/locks" in proc(5).
On NFS the kernel makes POSIX locks of them, which other machines see, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import Interrupted, UsageError

SAID_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05
_DEAF_S = 0.5  # a lock that is free again so soon is taken also by who is to end: it may be for its last words
_TRIES = 4  # of `take`: somebody may just look whether it is held
_NOTE_BYTES = 200

_posted: list[Callable[[], str | None]] = []


class LockTaken(Exception):
    """Somebody else has the lock. who: in words."""

    def __init__(self, who: str) -> None:
        super().__init__(who)
        self.who = who


@contextmanager
def heard(posted: Callable[[], str | None]) -> Iterator[None]:
    """Within the block every thread that waits for a lock ends when a signal has come. posted: its name, if one has."""
    _posted.append(posted)
    try:
        yield
    finally:
        _posted.remove(posted)


@contextmanager
def held(path: Path, look: Callable[[], None] | None = None, *, signed: bool = True) -> Iterator[None]:
    """Within the block no other process has this lock. look: called in each turn of a wait instead of what is usual here, and
    may raise; signed: whether the holder writes its name there. Raises UsageError where the file cannot be opened or
    locked, and Interrupted."""
    descriptor = _waited_for(path, look, signed=signed)
    try:
        yield
    finally:
        os.close(descriptor)


def take(path: Path) -> int:
    """The descriptor of the lock, which closing it frees. Raises LockTaken, and UsageError where the file cannot be opened or
    locked."""
    for tried in range(_TRIES):
        time.sleep(tried and _LONGEST_PAUSE_S)
        descriptor = _opened(path)
        if _tried(path, descriptor) and is_at(path, descriptor):
            _sign(descriptor)
            return descriptor
        who = holder(descriptor)
        os.close(descriptor)
    raise LockTaken(who)


def is_held(path: Path, *, shared: bool = False) -> bool:
    """Whether a process has the lock for itself; or shared with others, too. False where there is no such file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:  # another user's
        return _process(path) is not None
    try:
        return not try_lock(descriptor, shared=not shared)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(descriptor: int, *, shared: bool = False, look: Callable[[], None] | None = None) -> None:
    """Wait for it. look: as for `held`. Raises Interrupted."""
    look = look or Wait(lambda: f"a lock, which {holder(descriptor)} holds").look
    while not try_lock(descriptor, shared=shared):
        look()


def unlock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def restrict(descriptor: int, folder: Path) -> None:
    """Leave a file of this user, which lies in the folder, to those who may lock it."""
    found, around = os.fstat(descriptor), folder.stat()
    writers = 0 if around.st_mode & stat.S_ISVTX else around.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if found.st_uid != os.geteuid():
        return
    with contextlib.suppress(OSError):
        if writers & stat.S_IWGRP and found.st_gid != around.st_gid:
            os.fchown(descriptor, -1, around.st_gid)
    if os.fstat(descriptor).st_gid != around.st_gid:
        writers &= ~stat.S_IWGRP
    mode = 0o600 | writers | writers << 1  # to write, and to read
    if stat.S_IMODE(found.st_mode) != mode:
        os.fchmod(descriptor, mode)


def is_at(path: Path, descriptor: int) -> bool:
    """Whether the open file still has this name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def holder(file: Path | int) -> str:
    """The holder of a lock on a file, in words: by the kernel, else by what its last holder wrote there."""
    process = _process(file)
    if process is not None:
        return _named(process)
    return note(file) or "a process that is not seen from here"


class Wait:
    """One wait for a lock. what: in words, asked for when it is told."""

    def __init__(self, what: Callable[[], str]) -> None:
        self._what = what
        self._began = time.monotonic()
        self._pause = _FIRST_PAUSE_S
        self._said = False

    def look(self) -> None:
        """To be called in each turn of the loop. Raises Interrupted."""
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
        waited = time.monotonic() - self._began
        signal = next(filter(None, (posted() for posted in _posted)), None) if waited >= _DEAF_S else None
        if signal is not None:
            raise Interrupted(
                f"interrupted by {signal}, while waiting for {self._what().partition(chr(10))[0]}",
                code="lock.interrupted",
            )
        if waited >= SAID_S and not self._said:
            self._said = True
            print(f"note: waiting for {self._what()}", file=sys.stderr, flush=True)


def _waited_for(path: Path, look: Callable[[], None] | None, *, signed: bool) -> int:
    look = look or Wait(lambda: f"{path}, which {holder(path)} holds\n  {_REMEDY}").look
    while True:
        descriptor = _opened(path)
        try:
            if _tried(path, descriptor) and is_at(path, descriptor):
                if signed:
                    _sign(descriptor)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        look()


def _tried(path: Path, descriptor: int) -> bool:
    """Raises UsageError where there are no locks."""
    try:
        return try_lock(descriptor)
    except OSError as error:
        raise UsageError(
            f"the lock {path} cannot be taken: {error.strerror}",
            "keep the project on a file system that has locks (flock): a local one, or Lustre that is mounted with the option "
            "flock, or NFS with its lock manager",
            code="lock.not-taken",
        ) from error


_REMEDY = "wait for its end, or end it; where that is no process of orchestrator, remove the file"


def _opened(path: Path) -> int:
    """Raises UsageError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        owner = _owner(path)
        whose = f"; it belongs to {owner}" if owner else ""
        remedy = "see to the rights of its folder" + (", or have the owner remove it" if owner else "")
        raise UsageError(
            f"the lock {path} cannot be opened: {error.strerror}{whose}", remedy, code="lock.not-opened"
        ) from error
    with contextlib.suppress(OSError):  # a file system without modes
        restrict(descriptor, path.parent)
    return descriptor


def _sign(descriptor: int) -> None:
    """For who looks for the holder on another machine, or in another container."""
    note = f"process {os.getpid()} of {user_name(os.geteuid())} on {socket.gethostname()}\n"
    with contextlib.suppress(OSError):  # a full disk
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, note.encode(), 0)


def note(file: Path | int) -> str:
    """The last holder of the lock, as it wrote there; empty where none did."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC) if isinstance(file, Path) else os.dup(file)
    except OSError:
        return ""
    try:
        note = os.pread(descriptor, _NOTE_BYTES, 0).decode(errors="replace")
    except OSError:  # a folder
        return ""
    finally:
        os.close(descriptor)
    return _printable(note) if note.startswith("process ") else ""


def _process(file: Path | int) -> int | None:
    """The number of the holder's process, if the kernel tells. Some file systems have another number for their device
    there."""
    try:
        found = file.stat() if isinstance(file, Path) else os.fstat(file)
        listed = Path("/proc/locks").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    known: dict[str, int] = {}
    for fields in map(str.split, listed):
        if len(fields) == 8 and fields[1] in ("FLOCK", "POSIX") and fields[4].lstrip("-").isdigit():
            known.setdefault(fields[5], int(fields[4]))
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    process = known.get(f"{device}:{found.st_ino}")
    if process is None:
        alike = [each for place, each in known.items() if place.rpartition(":")[2] == str(found.st_ino)]
        process = alike[0] if len(alike) == 1 else None
    return process if process is not None and process > 0 else None


def _named(process: int) -> str:
    place = Path(f"/proc/{process}")
    try:
        name, user = (place / "comm").read_text(encoding="utf-8", errors="replace"), user_name(place.stat().st_uid)
    except OSError:
        return f"a child of process {process}, which has ended,"
    here = "this process, " if process == os.getpid() else ""
    return f"{here}process {process} ({_printable(name)}) of user {user}"


def _owner(path: Path) -> str | None:
    try:
        return f"user {user_name(path.lstat().st_uid)}"
    except OSError:
        return None


def user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # an account without a name
        return str(number)


def _printable(text: str) -> str:
    """Others wrote it."""
    return "".join(each for each in text if each.isprintable())
