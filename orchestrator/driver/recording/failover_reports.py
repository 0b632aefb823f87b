"""Reads what the members of a driver that died have left for the next one: a file of each member, beside the checkpoints
(`cluster.actors.driver_loss`). It holds what that driver had not heard: lines of the trace, sync barriers, evaluations, and
the parts of a checkpoint that the member wrote as it stopped.

First all of it goes into the files of the run, then the checkpoint is committed, and only then the files of the members are
removed. So a process that is interrupted can begin anew. MLflow is told of it once the run is opened
(`EventSink.catches_up`). A store that is away then opens none, so one file of the run keeps what is to be told (`untold`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.catalog import Catalog
from orchestrator.checkpoint.storage import Storage
from orchestrator.cluster.actors.driver_loss import PREFIX
from orchestrator.driver.folders import RunFolder
from orchestrator.errors import CheckpointDamaged
from orchestrator.records import lines
from orchestrator.records.lines import LineFile
from orchestrator.records.merging import Change, Disagreement, History

Entry = dict[str, Any]
_Key = tuple[int, int, int]  # step, generation, parts


@dataclass(frozen=True)
class FailoverReports:
    """The reports that were found, for the user. step: of the checkpoint, None where none was whole; trouble: why it cannot be
    used, or ""."""

    step: int | None = None
    trouble: str = ""

    @property
    def sentence(self) -> str | None:
        if self.trouble:
            return f"the reports that members of the last driver have left cannot be used: {self.trouble}"
        return None if self.step is None else f"the members of the last driver saved step {self.step} when it ended"


def take(storage: Storage, catalog: Catalog, files: RunFolder, first: int, *, supersedes: bool) -> FailoverReports:
    """Put what was left into the run's files, and commit the newest whole checkpoint. first: step of the run; supersedes: as
    for `History`. Raises CheckpointDamaged where the place of the checkpoints cannot be read, or a disk is full: what was left
    stays there for the next try."""
    try:
        names = sorted(name for name in storage.sizes() if name.startswith(PREFIX))
        left = [storage.get(name) for name in names]
    except OSError as error:
        raise CheckpointDamaged(
            f"the checkpoints cannot be listed: {error}", "see to their place", code="checkpoint.not-listed"
        ) from error
    if not names:
        return FailoverReports()
    try:
        entries = [entry for data in left for entry in _read(data)]
        _write_history(entries, files, first, supersedes=supersedes)
        files.sync()
        found = FailoverReports(_commit(catalog, entries))
    except (Disagreement, ValueError, CheckpointDamaged, FileNotFoundError) as error:
        found = FailoverReports(trouble=str(error))
    except OSError as error:
        raise CheckpointDamaged(
            f"what the members of the last driver have left cannot be written to the run: {error}",
            "make room on its disk, and resume again",
            code="resume.reports-not-taken",
        ) from error
    for name in names:
        storage.delete(name)
    return found


def untold(files: RunFolder, until: int) -> Sequence[Entry]:
    """The lines of the trace, the evaluations and the calls of `on_evaluation`, which the journal lacks, that MLflow was not
    told of yet. until: the step from which on all is done, and told, again. Raises CheckpointDamaged."""
    try:
        found = {(entry.get("event"), entry["step"]): entry for entry in lines.written(files.untold)}
    except (ValueError, KeyError) as error:
        raise CheckpointDamaged(
            f"{files.untold} is damaged: {error}",
            "remove it; MLflow then lacks the metrics of some steps, which the files of the run have",
            code="resume.untold-damaged",
        ) from None
    known = {
        ("called_back", entry["step"]) for entry in lines.written(files.journal) if entry["event"] == "called_back"
    }
    return [entry for key, entry in found.items() if key not in known and entry["step"] < until]


def _read(data: bytes) -> list[Entry]:
    """Whole lines alone. Raises ValueError for a damaged one."""
    return [json.loads(line) for line in data.splitlines(keepends=True) if line.endswith(b"\n")]


def _write_history(entries: Sequence[Entry], files: RunFolder, first: int, *, supersedes: bool) -> None:
    """Add what is new to the files of the run: first that it is untold, since what they have is not new to the next process.
    Raises Disagreement, OSError."""
    known = _count(files.trace) + first, _count(files.barriers)
    history = History(*known, supersedes=supersedes)
    trace, barriers = history.add(entries)
    told = {
        entry["step"]: entry for entry in entries if entry.get("event") == "evaluated" and not history.is_void(entry)
    }
    called = {entry["step"]: entry for entry in entries if entry.get("event") == "called_back"}
    known_events = {(entry["event"], entry.get("step")) for entry in lines.read(files.journal)}
    evaluations = [told[step] for step in sorted(told) if ("evaluated", step) not in known_events]
    calls = [called[step] for step in sorted(called) if ("called_back", step) not in known_events]
    if new := [*trace.new, *evaluations, *calls]:
        _append(files.untold, Change(0, new), 0)
    _append(files.trace, trace, first)
    if barriers.new or barriers.replaces:
        _append(files.barriers, barriers, 0)
    with closing(LineFile(files.journal)) as file:
        file.append(evaluations)


def _append(path: Path, change: Change, first: int) -> None:
    with closing(LineFile(path)) as file:
        if change.replaces:
            file.keep(change.kept - first)
        file.append(change.new)
        file.sync()


def _count(path: Path) -> int:
    return len(lines.raw(path)) if path.exists() else 0


def _commit(catalog: Catalog, entries: Iterable[Entry]) -> int | None:
    """The newest checkpoint of which all parts are written; its step. Raises OSError, CheckpointDamaged."""
    for (step, _, parts), found in sorted(_parts(entries).items(), reverse=True):
        if len(found) == parts:
            catalog.commit(step, list(found.values()))
            return step
    return None


def _parts(entries: Iterable[Entry]) -> Mapping[_Key, dict[int, Entry]]:
    """The entries of the parts that are written, by checkpoint and number."""
    parts: defaultdict[_Key, dict[int, Entry]] = defaultdict(dict)
    for entry in entries:
        if entry.get("event") == "part_written":
            parts[entry["step"], entry["generation"], entry["parts"]][entry["part"]] = entry
    return parts
