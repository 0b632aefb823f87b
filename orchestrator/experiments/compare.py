"""The differences between runs, the most consequential first: `compare=RUN_A,RUN_B`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.data import drift
from orchestrator.data.drift import Drift
from orchestrator.driver.folders import project_folder
from orchestrator.driver.recording import unsent
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.driver.report import pictures
from orchestrator.driver.terminal.progress import for_stream
from orchestrator.errors import UsageError
from orchestrator.experiments.rerun.changed_files import changed_files
from orchestrator.provenance.code.ancestry import Ancestry, ancestry
from orchestrator.provenance.code.changes import Change
from orchestrator.records import comparison
from orchestrator.records.comparison import Comparison
from orchestrator.records.verdict import divergence_text


@dataclass(frozen=True)
class Compared:
    """The facts of two runs, a and b, side by side."""

    a: str  # id of the first run
    b: str  # id of the second run
    found: Comparison  # differences in what they are made of and in what they came to
    changed: list[Change]  # files of the code that differ
    # what each side changed since their common ancestor, or why that is not known; None of equal code
    ancestry: Ancestry | str | None = None
    drift: Drift | None = None  # of the training data; None where a run does not tell how they are distributed
    picture: Path | None = None  # file in which the drift is drawn; None where there is no drift

    def as_dict(self) -> dict[str, Any]:
        files = [{"path": each.path, "kind": each.kind, "diff": each.diff} for each in self.changed]
        values = {"runs": [self.a, self.b], **self.found.as_dict(), "files": files, "ancestor": None}
        values["drift"] = None if self.drift is None else self.drift.as_dict()
        values["picture"] = None if self.picture is None else str(self.picture)
        return {**values, "ancestor": self.ancestry.as_dict()} if isinstance(self.ancestry, Ancestry) else values

    def as_text(self) -> str:
        parts = [f"run a is {self.a}, run b is {self.b}", self.found.as_text()]
        if self.found.first_divergence is not None:
            parts.append(
                f"first difference of the traces: {divergence_text(self.found.first_divergence, comparison.RUNS)}"
            )
        if self.drift is not None:
            parts.append(self.drift.text)
        if self.picture is not None:
            parts.append(f"drawn in {self.picture}")
        if isinstance(self.ancestry, Ancestry):
            parts.append(self.ancestry.text)
        elif self.ancestry is not None:
            parts.append(f"a common ancestor of their code is not known: {self.ancestry}")
        parts += [each.diff.rstrip("\n") for each in self.changed if each.diff]
        return "\n".join(parts)


@dataclass(frozen=True)
class Several:
    """The first of some runs with each of the others."""

    found: list[Compared]

    def as_dict(self) -> dict[str, Any]:
        runs = [self.found[0].a, *(each.b for each in self.found)]
        return {"runs": runs, "comparisons": [each.as_dict() for each in self.found]}

    def as_text(self) -> str:
        return "\n\n".join(each.as_text() for each in self.found)


def compare(names: str, uri: str | None) -> Compared | Several:
    """Compare recorded runs. names: runs, separated by commas; of more than two the first is compared with each of the
    others. Raises UsageError, ConfigurationError, NotRerunnable for a damaged snapshot."""
    wanted = [name for name in names.split(",") if name]
    if len(wanted) < 2:
        raise UsageError(
            f"compare={names}: two runs are needed",
            "compare=RUN_A,RUN_B; list them with: runs",
            code="command.compare-two",
        )
    folder = project_folder(Path.cwd())
    store = unsent.opened(uri, folder, wanted[0], for_stream().say)
    first, *others = (Recorded.find(store, folder, name) for name in wanted)
    found = [_compared(folder, first, other) for other in others]
    return Several(found) if len(found) > 1 else found[0]


def _compared(folder: Path, a: Recorded, b: Recorded) -> Compared:
    changed = changed_files(a, b)
    found = comparison.compare(a.as_run(), b.as_run(), {each.path: each.kind for each in changed})
    moved, picture = _drift(folder, a, b)
    origin = _ancestry(Path.cwd(), a, b) if changed else None
    return Compared(a.past.run_id, b.past.run_id, found, changed, origin, moved, picture)


def _drift(folder: Path, a: Recorded, b: Recorded) -> tuple[Drift | None, Path | None]:
    """How the training data of b differ from those of a, and where that is drawn; they are equal where their profiles are."""
    mine, theirs = a.profile, b.profile
    found = None if mine is None or theirs is None else drift.compare(mine, theirs)
    if found is None or mine is None or theirs is None or not found.has_picture:
        return found, None
    names = a.past.run_id, b.past.run_id
    path = folder / "drift" / f"{names[0][:8]}-{names[1][:8]}.png"
    return found, path if pictures.draw_drift(path, found, (mine, theirs), names) is None else None


def _ancestry(project: Path, a: Recorded, b: Recorded) -> Ancestry | str:
    origins = a.code.get("origin"), b.code.get("origin")
    return ancestry(project, origins, (a.files.bundle, b.files.bundle))
