"""Whether the data drifted since the run before, found out beside the first steps, so that no launch waits for it.

Only where declared inputs have changed is there anything to find: then a process of its own reads the data as the workers do
(`data.profiling`). The driver of the run asks now and then what has come of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.config.plan import Run
from orchestrator.data.drift import Drift
from orchestrator.data.profiling import Profiling
from orchestrator.driver.recording.comparisons import Predecessor

_LAST_S = 10.0  # at the end, for who asks a store that hangs: one of objects is asked again for minutes


@dataclass(frozen=True)
class DataDrift:
    """How the data differ from those of this run."""

    run_id: str
    drift: Drift


class DriftWatch:
    """Compares the data of a run with those of its predecessor, in a process beside it. run: of the plan; inputs: declared
    path -> md5; predecessor: finds it; files: the cache of those from elsewhere."""

    def __init__(
        self,
        run: Run,
        inputs: dict[str, str],
        predecessor: Callable[[], Predecessor | None],
        files: tuple[int, str | None, float] | None = None,
    ) -> None:
        self._run = run
        self._files = files
        self._inputs = inputs
        self._predecessor = predecessor
        self._found: DataDrift | None = None
        self._profiling: Profiling | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin to look, unless that has been done."""
        if self._thread is None and self._inputs:
            self._thread = threading.Thread(target=self._look, name="drift", daemon=True)
            self._thread.start()

    def take(self) -> DataDrift | None:
        """The drift that was found; only the first call after that gets it."""
        with self._lock:
            found, self._found = self._found, None
        return found

    def close(self) -> None:
        """Look no further. Safe to call twice."""
        with self._lock:
            self._is_closed = True
            profiling = self._profiling
        if profiling is not None:
            profiling.close()
        if self._thread is not None:
            self._thread.join(_LAST_S)

    def _look(self) -> None:
        before = self._predecessor()
        if before is None or not before.inputs or before.inputs == self._inputs:
            return
        with self._lock:
            if self._is_closed:
                return
            self._profiling = Profiling(self._run.pipeline, self._run.seed, self._files)
        found = before.drift(self._profiling.result())
        with self._lock:
            if found is not None and not self._is_closed:
                self._found = DataDrift(before.run_id, found)
