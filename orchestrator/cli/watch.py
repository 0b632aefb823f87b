"""`watch=RUN_ID`: the progress of a run that a driver elsewhere on this machine goes on with, read from the run's files.

It changes nothing and locks nothing: however it ends, the run goes on. Ctrl-C is its usual end, and no error.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import CommandResult, ended
from orchestrator.driver.folders import RunFolder, project_folder
from orchestrator.driver.report.outcome import recovery_in_words
from orchestrator.driver.terminal.progress import ProgressDisplay, for_stream
from orchestrator.errors import Interrupted, UsageError
from orchestrator.provenance.tracking import Store
from orchestrator.records import bounded_json

_LOOK_S = 0.25


@dataclass
class Watched:
    """The state of a run as it was seen."""

    run_id: str  # of that run
    status: str = "running"  # as `runs` has it
    interrupted: bool = False  # whether nobody looked on, by a signal, while the run went on
    steps: int = 0  # completed
    loss: float | None = None  # of the last of these; None before the first
    metrics: dict[str, float] = field(default_factory=dict)  # of the last evaluation

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return Interrupted.exit_code
        return 0 if self.status == "finished" else 1

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Tail:
    """The lines of a file that grows, is cut and grows again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._line = 0  # the number of the one that was given last

    def new(self) -> Iterator[dict[str, Any]]:
        """Whole lines that were not seen yet; all again, where the file has become shorter. Raises UsageError."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._read:
                    self._read = self._line = 0
                file.seek(self._read)
                text = file.read()
        except FileNotFoundError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            self._line += 1
            try:
                yield bounded_json.parsed(line)
            except ValueError:
                raise self.damaged() from None

    def damaged(self) -> UsageError:
        """The error that names the line given last."""
        return UsageError(
            f"{self._path} is damaged: line {self._line} is not what was written",
            "the run itself may go on; see how it ends with: python -m orchestrator runs",
            code="record.line-damaged",
        )


def run(arguments: Arguments) -> CommandResult:
    found = watch(Path.cwd(), arguments.value, arguments.uri)
    return ended(found.exit_code, found.as_dict(), arguments)


def watch(project: Path, name: str, uri: str | None) -> Watched:
    """Show the run's progress until it ends. Raises UsageError."""
    folder = project_folder(project)
    store = Store.with_run(uri, folder, name)
    past = store.find(name)
    if not (folder / past.run_id).exists():
        raise UsageError(
            f"run {past.run_id} was not launched in {project}",
            "watch it there; MLflow's pages show it from anywhere: python -m orchestrator ui",
            code="record.launched-elsewhere",
        )
    files, display = RunFolder(folder, past.run_id), for_stream()
    watched = Watched(past.run_id)
    journal, trace = Tail(files.journal), Tail(files.trace)
    try:
        while True:
            ended = not files.is_driven  # looked at first: what the driver wrote before its end is read after it
            _show(watched, display, journal, trace)
            if ended:
                break
            time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        watched.interrupted = True
    finally:
        display.close()
    if watched.interrupted:
        display.say(f"run {past.run_id} goes on without being watched, after step {watched.steps}")
        return watched
    watched.status = store.find(past.run_id).status.lower()
    display.say(f"run {past.run_id} {_ENDS.get(watched.status, 'has ended')} after step {watched.steps}")
    return watched


_ENDS = {"finished": "finished", "failed": "failed", "killed": "was interrupted", "running": "was left by its driver"}


def _show(watched: Watched, display: ProgressDisplay, journal: Tail, trace: Tail) -> None:
    _each(journal, functools.partial(_event, watched, display))
    _each(trace, functools.partial(_step, watched))
    if watched.loss is not None:
        display.step(watched.steps, watched.loss)


def _each(tail: Tail, tell: Callable[[dict[str, Any]], None]) -> None:
    for line in tail.new():
        try:
            tell(line)
        except (AttributeError, LookupError, TypeError, ValueError):
            raise tail.damaged() from None


def _event(watched: Watched, display: ProgressDisplay, entry: dict[str, Any]) -> None:
    event = entry.get("event")
    if event == "generation_started":
        display.close()
        display.start(entry["steps"])
    elif event == "recovered":
        display.say(recovery_in_words(entry))
    elif event == "evaluated":
        watched.metrics = {name: float(value) for name, value in entry["metrics"].items()}
        display.say(f"after step {entry['step'] + 1}: " + ", ".join(f"{k} {v:.4g}" for k, v in watched.metrics.items()))
    elif event in ("worker_lost", "server_lost"):
        role = event.removesuffix("_lost")
        display.say(f"{role} {entry[role]} was lost after step {entry['step']}: {entry['why']}")
    elif event in ("worker_left", "server_left"):
        role = event.removesuffix("_left")
        display.say(f"{role} {entry[role]} left after step {entry['step']}, since its node goes away")


def _step(watched: Watched, line: dict[str, Any]) -> None:
    watched.steps, watched.loss = line["step"] + 1, float.fromhex(line["loss"])
