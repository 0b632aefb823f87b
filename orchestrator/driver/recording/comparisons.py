"""The data of the run before, and how this run's differ from them.

It is a comfort: if the store cannot be asked, or the run before has no profile, nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.data import drift
from orchestrator.data.drift import Drift, Profile
from orchestrator.provenance.tracking import Store, Tracker, predecessors


@dataclass(frozen=True)
class Predecessor:
    """inputs: declared path -> md5."""

    run_id: str
    profile: Profile
    inputs: Mapping[str, str]

    def drift(self, profile: Profile | None) -> Drift | None:
        """The drift from its data to those of this profile; None if that cannot be told."""
        return None if profile is None else drift.compare(self.profile, profile)


def find(store: Store, tracker: Tracker, target: str, folder: Path) -> Predecessor | None:
    """The predecessor of the run of `tracker`; None if the store cannot be asked, or that run has no profile. folder: the
    project's `.orchestrator`."""
    try:
        run_id = predecessors.predecessor(store, tracker, target)
        facts: dict[str, Any] = {} if run_id is None else predecessors.data_of(store, run_id, folder)
    except Exception:  # MLflow's, requests', of a damaged file
        return None
    if run_id is None or not isinstance(facts.get("profile"), dict):
        return None
    return Predecessor(run_id, facts["profile"], {item["path"]: item["md5"] for item in facts.get("inputs", [])})
