"""A command that runs while a test watches it, disturbs it, and waits for what it does."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.records.lines import read
from tests.projects import PATIENCE_S, Done, Project

T = TypeVar("T")


class WatchedRun:
    """A launch or a resume of `project`. Its run is the new one, or `run_id`."""

    def __init__(self, project: Project, *arguments: str, run_id: str | None = None) -> None:
        self._project = project
        before = set(project.runs())
        self.process = project.start(*arguments)
        self.run_id = run_id or self.wait(lambda: next(iter(set(project.runs()) - before), None))

    @property
    def folder(self) -> Path:
        return self._project.folder(self.run_id)

    def journal(self, event: str | None = None) -> list[dict[str, Any]]:
        path = self.folder / "journal.jsonl"
        return [each for each in read(path) if event in (None, each["event"])] if path.exists() else []

    @property
    def steps(self) -> int:
        trace = self.folder / "trace.jsonl"
        return trace.read_bytes().count(b"\n") if trace.exists() else 0

    def living(self, role: str = "worker") -> dict[int, int]:
        """id -> pid of the members that were started and not lost."""
        lost = {each[role] for each in self.journal(f"{role}_lost")}
        return {each[role]: each["pid"] for each in self.journal(f"{role}_started") if each[role] not in lost}

    def wait_for_steps(self, steps: int) -> None:
        self.wait(lambda: self.steps >= steps or None)

    def wait_for(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """Until the journal holds so many of these."""
        return self.wait(lambda: found if len(found := self.journal(event)) >= count else None)

    def wait(self, look: Callable[[], T | None]) -> T:
        """The first value that `look` gives that is not None."""
        deadline = time.monotonic() + PATIENCE_S
        while (seen := look()) is None:
            if self.process.poll() is not None:
                raise AssertionError(f"the command ended: {self.process.communicate()}")
            assert time.monotonic() < deadline, "nothing of the kind came"
            time.sleep(0.03)  # each look reads files anew
        return seen

    def kill(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(pid, number)

    def end(self) -> Done:
        try:
            out, err = self.process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)
            raise AssertionError(f"it did not end: {self.journal()[-3:]}") from None
        return Done(self.process.returncode, out, err)
