"""`once=ID conf=NAME ...`: launch a run under an id, or go on with the run that has it. A job runs this, however often."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import CommandResult, ended, ended_run
from orchestrator.common import locks
from orchestrator.config.settings import Settings, kept
from orchestrator.driver.folders import project_folder
from orchestrator.driver.launch.launch import launch
from orchestrator.driver.launch.resume import resume
from orchestrator.driver.preflight import ownership
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.driver.report.outcome import RunOutcome
from orchestrator.driver.terminal.progress import for_stream
from orchestrator.errors import NotRerunnable, UsageError
from orchestrator.provenance.tracking import Past, Store

KEY = "run.submission"
# whoever drove it was lost too early for a resume, or with its files
_LOST = ("record.no-settings", "record.no-code", "record.elsewhere")
_STILL_RUNS = "record.still-running"  # as far as this machine can tell
_LETTERS = 16  # of the hash of an id, in the name of its lock
# Over from a job to a run that it goes on with.
_PLACES_TAKEN = ("cluster.", "output=", "tracking.uri=", "privacy.secret=")


def run(arguments: Arguments) -> CommandResult:
    kept = [each for each in arguments.overrides if each.startswith(_PLACES_TAKEN)]
    with alone(arguments.value) as killed:
        run_id, came = once(
            *(arguments.value, arguments.settings, arguments.origins, kept),
            killed=killed,
            trusted=arguments.flag("trust"),
        )
    return ended(0, as_dict(came), arguments) if isinstance(came, Past) else ended_run(run_id, came, arguments)


@contextlib.contextmanager
def alone(name: str) -> Iterator[str]:
    """Within the block no other process of this project is at work under this id: it would find no run yet, and launch a second
    one. Gives the note of the last one where that was killed, perhaps with its machine. Raises UsageError."""
    place = project_folder(Path.cwd()) / f"once-{hashlib.sha256(name.encode()).hexdigest()[:_LETTERS]}.lock"
    killed = locks.note(place)  # who ends in order removes it
    try:
        lock = locks.take(place)
    except locks.LockTaken as taken:
        raise UsageError(
            f"job {name} is under way in {taken.who}", "wait for its end, or end that process", code="job.under-way"
        ) from None
    try:
        yield killed
    finally:
        place.unlink(missing_ok=True)  # while it is held: whoever has opened it takes another one
        os.close(lock)


def find(store: Store, name: str) -> Past | None:
    """The newest run that was launched under this id."""
    return next((past for past in store.past() if past.settings.get(KEY) == name), None)


def once(
    name: str,
    settings: Settings,
    origins: Mapping[str, str],
    execution: Sequence[str],
    *,
    killed: str = "",
    trusted: bool = False,
) -> tuple[str, RunOutcome | Past]:
    """The run's id and what it came to; of one that had finished before, what is known of it. execution: the overrides that a
    resume takes; it is told credentials that the record does not hold, too. killed: as `alone` gives it; trusted: as `launch`
    takes it.

    Raises as `launch` and `resume` do."""
    folder = project_folder(Path.cwd())
    store = Store(settings.tracking.uri, folder)
    past = find(store, name)
    if past is None:
        return launch(settings, origins, trusted=trusted)
    if past.status == "FINISHED":
        for_stream().say(f"run {past.run_id} of job {name} has finished already")
        return past.run_id, past
    if not ownership.is_own(past):
        raise UsageError(
            f"run {past.run_id} of job {name} was launched by {past.user or 'somebody unknown'}",
            f"take another id, or go on with it if you trust who made it: resume={past.run_id} trust=true",
            code="job.not-yours",
        )
    for_stream().say(f"going on with run {past.run_id} of job {name}")
    again = kept.restored(Recorded.of(store, folder, past).files.settings, settings)
    try:
        return resume(past.run_id, [*again, *execution], settings.tracking.uri, trusted=trusted)
    except NotRerunnable as error:
        why = error.message
        if error.code == _STILL_RUNS and _drove(store, past, killed):
            store.client.set_terminated(past.run_id, "KILLED")
            why = f"run {past.run_id} was lost with {killed}, before its settings were recorded"
        elif error.code not in _LOST:
            raise
        for_stream().say(f"{why}: job {name} launches a new one")
        return launch(settings, origins, trusted=trusted)


def _drove(store: Store, past: Past, killed: str) -> bool:
    """Whether this process, which is gone, drove the run. The kernel knows nothing of one on another host."""
    pid, _, host, _ = store.driving(past.run_id).process
    return killed.startswith(f"process {pid} of ") and killed.endswith(f" on {host}")


def as_dict(past: Past) -> dict[str, Any]:
    """The report of a run that had finished, as far as it is known."""
    return {
        "run_id": past.run_id,
        "status": "finished",
        "steps": past.steps,
        "digest": past.digest,
        "metrics": past.metrics,
    }
