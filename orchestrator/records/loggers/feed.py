"""Tells writers of a run, each in a thread of its own: the driver waits for none of them, and none for another."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.errors import Status
from orchestrator.records.loggers import LOGGERS
from orchestrator.records.loggers.logger import LoggedRun, Logger

_LAST_S = 60.0  # for what they have not taken when the run ends
_Call = Callable[[Logger], object]


class LoggerFeed:
    """Tells the writers of one run. names: of writers; none is a feed too. They are told what MLflow is told, in the same
    order."""

    def __init__(self, names: Sequence[str], run: LoggedRun, last_s: float = _LAST_S) -> None:
        self._streams = [_Stream(name, run) for name in dict.fromkeys(names)]
        self._last_s = last_s

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        copied = dict(values)
        for stream in self._streams:
            stream.put(lambda logger: logger.metrics(step, copied))

    def troubles(self) -> list[str]:
        """The failures since this was asked last: a sentence for each writer that is told nothing any more."""
        found = [stream.take_trouble() for stream in self._streams]
        return [each for each in found if each is not None]

    def end(self, status: Status, results: Mapping[str, Any]) -> list[str]:
        """The run is over; wait until all writers know. Returns the last troubles."""
        copied = dict(results)
        for stream in self._streams:
            stream.end(lambda logger: logger.end(status, copied))
        deadline = time.monotonic() + self._last_s
        for stream in self._streams:
            stream.join(deadline)
        return self.troubles()


class _Stream:
    """One writer with what it is to be told. The thread does not keep the process alive."""

    def __init__(self, name: str, run: LoggedRun) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._trouble: str | None = None
        self._failed = False
        self._thread = threading.Thread(target=self._write, args=(run,), name=f"writer {name}", daemon=True)
        self._thread.start()

    def put(self, call: _Call) -> None:
        if not self._failed:  # nobody would take it from the queue
            self._calls.put(call)

    def end(self, call: _Call) -> None:
        self.put(call)
        self._calls.put(None)

    def join(self, deadline: float) -> None:
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._fail(f"{self._name} has not taken all that it was told when the run had ended")

    def take_trouble(self) -> str | None:
        trouble, self._trouble = self._trouble, None
        return trouble

    def _write(self, run: LoggedRun) -> None:
        try:
            logger = LOGGERS[self._name](run)
            flush = getattr(logger, "flush", lambda: None)
            while (call := self._calls.get()) is not None:
                call(logger)
                if self._calls.empty():
                    flush()
        except Exception as error:  # of a package or of the user's code: the run does not depend on it
            first = (str(error).splitlines() or [""])[0]
            self._fail(f"{self._name} is told nothing any more: {type(error).__name__}: {first}")

    def _fail(self, why: str) -> None:
        self._failed, self._trouble = True, f"tracking.also: {why}"
