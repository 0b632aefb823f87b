"""A process that fetches files into the cache of its node before they are read.

Its bytes, its hashing and the random numbers of its libraries disturb nobody here. It is told which files are
expected, and tells the bytes of each that it has fetched (`common.child`), in JSON; it ends with its input. It fetches several
at once, and gives up at the first difficulty: who needs the file meets it too, waits and says so.

Nobody holds the fetched files: each message dates the expected ones anew in the cache, so that they go last.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

from orchestrator.common.child import Messages, parent
from orchestrator.data.files import cache
from orchestrator.data.files.manifest import File
from orchestrator.data.files.places import place_of
from orchestrator.errors import OrchestratorError

_AT_ONCE = 4
_PAUSE_S = 1.0


class Expected:
    """The worker's wishes as the process knows them: the newest, in order. Threads take from it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._files: list[File] = []
        self._taken: set[str] = set()  # by MD5: under way, or done since the last message

    def replace(self, files: list[File]) -> list[File]:
        """Returns those that are not expected any more."""
        with self._changed:
            kept = {file.md5 for file in files}
            gone = [file for file in self._files if file.md5 not in kept]
            self._files, self._taken = files, self._taken & kept
            self._changed.notify_all()
        return gone

    def take(self) -> File:
        """The first that nobody has taken; waits for one."""
        with self._changed:
            while (found := next((file for file in self._files if file.md5 not in self._taken), None)) is None:
                self._changed.wait()
            self._taken.add(found.md5)
            return found

    def put_back(self, file: File) -> None:
        with self._changed:
            self._taken.discard(file.md5)
            self._changed.notify_all()


def serve(worker: Messages) -> None:
    beginning = worker.receive()
    if beginning is None:
        return
    first = json.loads(beginning)
    cache.use(*first["cache"])
    node_cache, place, expected = cache.current(), place_of(first["place"]), Expected()
    lock = threading.Lock()

    def fetch() -> NoReturn:
        while True:
            file = expected.take()
            try:
                fetched = node_cache.bring(file, place)
            except (OSError, OrchestratorError):  # who reads it will say so
                fetched = False
            if fetched:
                with lock:
                    worker.send(json.dumps(file.size).encode())
            elif not node_cache.has(file):
                time.sleep(_PAUSE_S)
                expected.put_back(file)

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for _ in range(_AT_ONCE):
            threads.submit(fetch)
        while (wanted_files := worker.receive()) is not None:
            files = [File(*each) for each in json.loads(wanted_files)]
            for file in expected.replace(files):
                node_cache.forgets(file)
            for file in reversed(files):
                node_cache.expects(file)
        os._exit(0)  # what is under way is left over, and found so by its lock


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        serve(parent())
