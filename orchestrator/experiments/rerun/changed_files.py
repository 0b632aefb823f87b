"""The files of the code that differ between two recorded runs."""

from __future__ import annotations

from orchestrator.driver.recording.recorded import Recorded
from orchestrator.provenance.code.changes import Change, changes


def changed_files(a: Recorded, b: Recorded) -> list[Change]:
    """The files of the code that differ between two recorded runs, as far as their bundles are here."""
    bundles = a.files.bundle, b.files.bundle
    same = a.code.get("tree") == b.code.get("tree")
    return [] if same or not all(bundle.exists() for bundle in bundles) else changes(*bundles)
