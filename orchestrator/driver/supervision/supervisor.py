"""The process that waits for the end of a driver, and goes on with its run if that end was not in order.

    python -I -S supervisor.py DRIVER PATIENCE_S

It is run by its path and imports nothing of orchestrator, so that it is up in milliseconds and takes 10 MB. The driver tells it
by its standard input, a JSON object on each line: `{"run": ID, "command": [...], "where": ARGUMENT, "trace": FILE}`,
`{"lock": FILE}`, `{"done": true}`. When the driver has ended without the last one, it waits until no member holds the lock any
more, for they write what they have, and starts the command. It stays until that says `{"done": true}`, too, for it then has
a supervisor of its own: one that is killed before is followed as well. A run whose driver has died three times without a step
in between is left: another try would end as they did.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import time

TAKEN_OVER = "ORCHESTRATOR_TAKEN_OVER"  # how often without a step in between, the size of the trace, when, and whom
WATCHED = "ORCHESTRATOR_WATCHED"  # a successor, and by which descriptor it says that it has a supervisor of its own
_TRIES = 3
_TOLD_TO_END = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_LOOK_S = 0.02
_LOOK_AT_DRIVER_S = 0.5


class Lines:
    """The lines of an input, as they come."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._unread = b""
        self.is_over = False

    def read(self) -> list[bytes]:
        """Wait for input, and return the lines that are there; at its end there are no more."""
        data = os.read(self.descriptor, 1 << 16)
        self.is_over = not data
        *lines, self._unread = (self._unread + data).split(b"\n")
        return lines


class DriverWords:
    """All that the driver has said so far."""

    def __init__(self, descriptor: int) -> None:
        self._lines = Lines(descriptor)
        self.said: dict[str, object] = {}

    @property
    def is_over(self) -> bool:
        return self._lines.is_over

    def read(self) -> None:
        """Take in what is there."""
        for line in self._lines.read():
            self.said.update(json.loads(line))


def listen(driver: int, words: DriverWords, descriptor: int) -> None:
    """Listen until the driver has ended, or has said that it needs nobody any more."""
    try:
        process = os.pidfd_open(driver)
    except ProcessLookupError:
        process = None
    except (AttributeError, OSError):  # the system has no such descriptors, or Python does not know of them
        _look_and_listen(driver, words, descriptor)
        return
    while "done" not in words.said:
        sources = ([] if process is None else [process]) + ([] if words.is_over else [descriptor])
        ready = select.select(sources, [], [], 0 if process is None else None)[0] if sources else []
        if descriptor in ready:
            words.read()
        elif process is None or process in ready:
            return


def _look_and_listen(driver: int, words: DriverWords, descriptor: int) -> None:
    """As `listen`, where the kernel does not tell of the driver's end."""
    while "done" not in words.said:
        lives = _lives(driver)
        if not words.is_over and select.select([descriptor], [], [], _LOOK_AT_DRIVER_S if lives else 0)[0]:
            words.read()
        elif not lives:
            return
        elif words.is_over:
            time.sleep(_LOOK_AT_DRIVER_S)


def _lives(process: int) -> bool:
    """Not so one that has ended and whose end nobody has asked for yet."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def wait_for_members(lock: str, patience_s: float) -> None:
    """Wait until nobody holds the lock, and no longer than that."""
    deadline = time.monotonic() + patience_s
    with contextlib.suppress(FileNotFoundError), open(lock, "rb") as file:
        while not _takes(file.fileno()) and time.monotonic() <= deadline:
            time.sleep(_LOOK_S)  # no call waits for a lock and for a time


def _takes(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def tries(before: str | None, size: int) -> int:
    """How many drivers have died without a step in between, this one too. before: what was noted when the last one died."""
    count, _, reached = (before or "0 0").partition(" ")
    return int(count) + 1 if before is not None and reached.split()[0] == str(size) else 1


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except OSError:
        return 0


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        os.write(2, f"{text}\n".encode())


def main(arguments: list[str]) -> None:
    """Returns where there is nothing to go on with, and once a successor has a supervisor of its own, or has ended."""
    driver, patience_s = int(arguments[0]), float(arguments[1])
    words = DriverWords(0)
    listen(driver, words, 0)
    said, ended = words.said, time.monotonic()
    if "done" in said:
        return
    if "run" not in said:
        _say(f"the driver (process {driver}) has ended, and there is no record of a run to go on with yet")
        return
    while True:
        if "lock" in said:
            wait_for_members(str(said["lock"]), patience_s)
        size = _size(str(said["trace"]))
        count = tries(os.environ.get(TAKEN_OVER), size)
        if count > _TRIES:
            _say(
                f"the driver (process {driver}) has ended once more before a step was done: run {said['run']} is left as it is"
            )
            _say(f"  go on with it: python -m orchestrator resume={said['run']}{said['where']}")
            return
        os.environ[TAKEN_OVER] = f"{count} {size} {ended:.3f} {driver}"
        successor = _start(said, driver)
        if successor is None:
            return
        driver, ended = successor, time.monotonic()


def _start(said: dict[str, object], driver: int) -> int | None:
    """Start the next driver, and wait until it has a supervisor of its own. Its process, if it was killed before."""
    command = said["command"]
    assert isinstance(command, list)
    heard, told = os.pipe()
    successor = os.fork()
    if not successor:
        me, run = os.getpid(), said["run"]
        _say(
            f"the driver (process {driver}) has ended; process {me} goes on with run {run} (kill -INT {me} ends it in order)"
        )
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.set_inheritable(told, True)
        os.environ[WATCHED] = f"{me} {told}"
        os.execv(command[0], command)
    os.close(told)
    words = DriverWords(heard)
    listen(successor, words, heard)
    os.close(heard)
    if "done" in words.said:
        return None
    status = os.waitpid(successor, 0)[1]
    return successor if os.WIFSIGNALED(status) and os.WTERMSIG(status) not in _TOLD_TO_END else None


if __name__ == "__main__":
    main(sys.argv[1:])
