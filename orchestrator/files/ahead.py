"""Fetching the files of the samples that will be asked for, in the order in which they will be, by a process of its own.

Its bytes, its hashing and the random numbers of its libraries disturb nobody there. The process reads which files are expected
from its standard input and writes what it has fetched to its standard output, JSON in lines; it ends with its input. It
fetches several at once, and gives up at the first difficulty: who needs the file meets it too, waits and says so.

What is fetched is held by nobody: with each message what is expected is dated anew in the cache, so that it goes last.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

from orchestrator.errors import OrchestratorError
from orchestrator.files import cache
from orchestrator.files.manifest import File
from orchestrator.files.places import Place, place_of

_AT_ONCE = 4
_PAUSE_S = 1.0


class Ahead:
    """place: of these files; file_of: the number of the file that holds a sample; share: the bytes of the cache that may be
    expected at a time; keep_only: closes all files but these."""

    def __init__(
        self,
        place: Place,
        files: Sequence[File],
        file_of: Callable[[int], int],
        share: int,
        keep_only: Callable[[Iterable[int]], None],
    ) -> None:
        self._place, self._files, self._file_of, self._keep_only = place, files, file_of, keep_only
        self._share = share
        self._expected: deque[tuple[int, ...]] = deque()  # of each micro-batch its files, the next one first
        self._uses: Counter[int] = Counter()  # in the order in which they were expected first
        self._bytes = 0
        self._told: list[int] = []
        self._fetcher: _Fetcher | None = None

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._share

    def expect(self, indices: Iterable[int]) -> None:
        """The samples of one more micro-batch."""
        numbers = tuple(dict.fromkeys(map(self._file_of, indices)))
        self._expected.append(numbers)
        for number in numbers:
            self._bytes += 0 if self._uses[number] else self._files[number].size
            self._uses[number] += 1

    def passed(self) -> None:
        """The first of those that are expected has been read."""
        gone = []
        for number in self._expected.popleft():
            self._uses[number] -= 1
            if not self._uses[number]:
                del self._uses[number]
                self._bytes -= self._files[number].size
                gone.append(number)
        if gone:
            self._keep_only(self._uses)

    def forget(self) -> None:
        """Others will be asked for."""
        self._expected.clear()
        self._uses.clear()
        self._bytes = 0

    def tell(self) -> None:
        """Have those fetched that are expected, as far as the share goes."""
        wanted = self._within_share()
        if wanted != self._told:
            if self._fetcher is None:
                self._fetcher = _Fetcher(self._place.describe(""))
            self._fetcher.send([list(self._files[number]) for number in wanted])
            self._told = wanted

    def fetched(self) -> int:
        """Bytes since it was asked last."""
        return 0 if self._fetcher is None else self._fetcher.fetched()

    def close(self) -> None:
        """Safe to call twice."""
        if self._fetcher is not None:
            self._fetcher.close()
        self._fetcher, self._told = None, []

    def _within_share(self) -> list[int]:
        found, left = [], self._share
        for number in self._uses:
            left -= self._files[number].size
            if left < 0:
                break
            found.append(number)
        return found


class _Fetcher:
    """The process, and the thread that reads what it says. One that dies is not replaced: nothing but time depends on it."""

    def __init__(self, place: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,  # an interrupt of the run is for its driver
        )
        self._lock = threading.Lock()
        self._bytes = 0
        self._write({"place": place, "cache": cache.used()})
        threading.Thread(target=self._read, daemon=True, name="fetched").start()

    def send(self, files: list[list[Any]]) -> None:
        self._write(files)

    def fetched(self) -> int:
        with self._lock:
            found, self._bytes = self._bytes, 0
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def _write(self, message: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has died
            self._process.stdin.write(f"{json.dumps(message)}\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            for line in answers:
                with self._lock:
                    self._bytes += int(line)


class Expected:
    """What the process knows of the worker's wishes: the newest, in order. Threads take from it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._files: list[File] = []
        self._taken: set[str] = set()  # by MD5: under way, or done since the last message
        self._over = False

    def replace(self, files: list[File]) -> list[File]:
        """Returns those that are not expected any more."""
        with self._changed:
            kept = {file.md5 for file in files}
            gone = [file for file in self._files if file.md5 not in kept]
            self._files, self._taken = files, self._taken & kept
            self._changed.notify_all()
        return gone

    def take(self) -> File | None:
        """The first that nobody has taken; None at the end."""
        with self._changed:
            while not self._over:
                found = next((file for file in self._files if file.md5 not in self._taken), None)
                if found is not None:
                    self._taken.add(found.md5)
                    return found
                self._changed.wait()
        return None

    def put_back(self, file: File) -> None:
        with self._changed:
            self._taken.discard(file.md5)
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()


def serve(requests: IO[str], answers: IO[str]) -> None:
    first = json.loads(requests.readline())
    cache.use(*first["cache"])
    held, place, expected = cache.current(), place_of(first["place"]), Expected()
    lock = threading.Lock()

    def fetch() -> None:
        while (file := expected.take()) is not None:
            try:
                came = held.bring(file, place)
            except (OSError, OrchestratorError):  # who reads it will say so
                came = False
            if came:
                with lock:
                    print(file.size, file=answers, flush=True)
            elif not held.has(file):
                time.sleep(_PAUSE_S)
                expected.put_back(file)

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for _ in range(_AT_ONCE):
            threads.submit(fetch)
        for line in requests:
            files = [File(*each) for each in json.loads(line)]
            for file in expected.replace(files):
                held.forgets(file)
            for file in reversed(files):
                held.expects(file)
        os._exit(0)  # what is under way is left over, and found so by its lock


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        serve(sys.stdin, sys.stdout)
