"""How a run differs from runs before: its data from those of its predecessor, its digest from those of equal identity.

The comparison of data is a comfort: if the store cannot be asked, or the run before has no profile, nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.data import drift
from orchestrator.data.drift import Drift, Profile
from orchestrator.driver.folders import RunFolder
from orchestrator.driver.report import pictures
from orchestrator.provenance.tracking import Store, Tracker, predecessors

_NAMED = 10  # runs in a tag


@dataclass(frozen=True)
class Predecessor:
    """The run before, of the same pipeline. inputs: declared path -> md5."""

    run_id: str
    profile: Profile
    inputs: Mapping[str, str]

    def drift(self, profile: Profile | None) -> Drift | None:
        """The drift from its data to those of this profile; None if that cannot be told."""
        try:
            return None if profile is None else drift.compare(self.profile, profile)
        except Exception:  # its record may be damaged, or made by hand
            return None


def find(store: Store, tracker: Tracker, target: str, folder: Path) -> Predecessor | None:
    """The predecessor of the run of `tracker`; None if the store cannot be asked, or that run has no profile. folder: the
    project's `.orchestrator`."""
    try:
        run_id = predecessors.predecessor(store, tracker, target)
        facts: dict[str, Any] = {} if run_id is None else predecessors.data_of(store, run_id, folder)
        if run_id is None or not isinstance(facts.get("profile"), dict):
            return None
        return Predecessor(run_id, facts["profile"], {item["path"]: item["md5"] for item in facts.get("inputs", [])})
    except Exception:  # MLflow's, requests', of a damaged file
        return None


class Comparisons:
    """Compares one run with the runs of its store, tags it and them, and says in sentences what came of it."""

    def __init__(self, target: str, store: Store, tracker: Tracker, files: RunFolder) -> None:
        """target: of the run's pipeline; tracker, files: of the run."""
        self._target = target
        self._store = store
        self._tracker = tracker
        self._files = files
        self.drift_told = False  # what came of comparing the data, while the run went on
        self.drift: tuple[str, Drift] | None = None  # the run before, and how the data of this one differ
        self.said: list[str] = []  # of runs of equal identity

    def predecessor(self) -> Predecessor | None:
        """The run before, with what its data were like."""
        return find(self._store, self._tracker, self._target, self._files.path.parent)

    def compare_data(self, profile: Profile | None) -> list[str]:
        """Compare the training data with those of the run before, draw and tag what differs. profile: of these data; None
        where none was taken. Returns sentences for a person, where nobody has told so yet."""
        before = None if profile is None else self.predecessor()
        found = None if before is None else before.drift(profile)
        if before is None or found is None or profile is None:
            return []
        self.drift = before.run_id, found
        self._tracker.tag("drift", ", ".join(drift.named(found)) or "none")
        self._tracker.tag("drift_from", before.run_id)
        if not found.is_any:
            return []
        names = before.run_id, self._tracker.run_id
        path = self._files.pictures / "drift.png"
        both = before.profile, profile
        trouble = pictures.draw_drift(path, found, both, names) if found.has_picture else None
        notes = [] if self.drift_told else [f"note: since run {before.run_id} of this experiment {found.text}"]
        return notes if trouble is None else [*notes, f"note: {trouble}"]

    def compare_digest(self, identity: str, digest: str, ordered: str) -> list[str]:
        """Compare the digest with that of every run of the same identity, which must be equal (law 2), and tag all of these
        runs. ordered: what their updates have in common, in words. Returns sentences for a person."""
        others = [past for past in self._store.of_identity(identity) if past.run_id != self._tracker.run_id]
        same = [past.run_id for past in others if past.digest == digest]
        other = [past.run_id for past in others if past.digest not in (None, digest)]
        self._tag("confirms", same)
        self._tag("contradicts", other)
        if same and not other:
            self.said = [f"the same digest as {_count(same)} of equal code, data, settings and environment{ordered}"]
        elif other:
            self.said = [
                f"ALARM: {_count(other)} of equal code, data, settings and environment{ordered} came to another digest: "
                f"{other[0]}\n"
                f"  something that is not recorded changes the result; compare={other[0]},{self._tracker.run_id} says where"
            ]
        return self.said

    def _tag(self, what: str, others: list[str]) -> None:
        """Tag this run and the others, so that each of them names the others."""
        for run_id in others[:_NAMED]:
            self._tracker.tag_other(run_id, what, self._tracker.run_id)
        if others:
            self._tracker.tag(what, ", ".join(others[:_NAMED]))


def _count(runs: list[str]) -> str:
    return "an earlier run" if len(runs) == 1 else f"{len(runs)} earlier runs"
