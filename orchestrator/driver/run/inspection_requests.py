"""How a process asks the driver of a running run something: a folder for each request, in the run's folder.

    .orchestrator/<run id>/looks/<token>/request.json    whoever asks makes it, under another name, and renames the folder
    .orchestrator/<run id>/looks/<token>/answer          one line of JSON, then bytes; whoever asked takes all away

Files need no address, no port and no rights beyond those of the run's folder, and work the same whatever Ray the run is on. A
process that is killed while it waits leaves its folder, which the driver of the run removes at the end.

This module does not know what is asked.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

_REQUEST: Final = "request.json"
_ANSWER: Final = "answer"
_LOOK_S: Final = 0.02  # between two looks at whether the answer is there
_CHECK_S: Final = 1.0

Request = Mapping[str, Any]


class InspectionRequests:
    """The driver's side. path: of the folder, which need not exist."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: set[str] = set()

    def clear(self) -> None:
        """Remove answers that nobody has taken away, since the process that asked was killed."""
        for answer in self._path.glob(f"*/{_ANSWER}"):
            shutil.rmtree(answer.parent, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._path.rmdir()

    def requests(self) -> Iterator[tuple[str, Request]]:
        """(token, request) of each that has come since the last call."""
        try:
            present = {each.name for each in self._path.iterdir() if not each.name.startswith(".")}
        except OSError:
            present = set()
        self._seen &= present
        for token in sorted(present - self._seen):
            self._seen.add(token)
            with contextlib.suppress(OSError, ValueError):  # given up already, or not of ours
                yield token, json.loads((self._path / token / _REQUEST).read_text(encoding="utf-8"))

    def answer(self, token: str, told: Mapping[str, Any], raw: bytes = b"") -> None:
        """Answer a request. Nothing is done if the process that asked has gone."""
        unfinished = self._path / token / f"{_ANSWER}.unfinished"
        with contextlib.suppress(OSError):
            unfinished.write_bytes(json.dumps(told).encode() + b"\n" + raw)
            unfinished.rename(unfinished.with_name(_ANSWER))


def ask(path: Path, request: Request, timeout_s: float, check: Callable[[], None]) -> tuple[dict[str, Any], bytes]:
    """The answer to one request. path: of the mailbox; check: called now and then while there is none, may raise. Raises
    TimeoutError."""
    with _sent(path, request) as folder:
        answer, now = folder / _ANSWER, time.monotonic()
        deadline, checked = now + timeout_s, now
        while not answer.exists():
            now = time.monotonic()
            if now >= checked + _CHECK_S:
                check()
                checked = now
            if now >= deadline:
                raise TimeoutError
            time.sleep(_LOOK_S)
        told, _, raw = answer.read_bytes().partition(b"\n")
        return json.loads(told), raw


@contextmanager
def _sent(path: Path, request: Request) -> Iterator[Path]:
    token = uuid.uuid4().hex
    hidden, folder = path / f".{token}", path / token
    try:
        hidden.mkdir(parents=True)
        (hidden / _REQUEST).write_text(json.dumps(request), encoding="utf-8")
        hidden.rename(folder)
        yield folder
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # others are asking too
            path.rmdir()
