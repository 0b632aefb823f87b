"""Files of a run or a sweep that is driven elsewhere, copied from the store; and copied anew once it has gone on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.driver.folders import RunFolder
from orchestrator.provenance.tracking import Past, Store


def bring(store: Store, past: Past, files: RunFolder, artifacts: str, wanted: Sequence[Path]) -> None:
    """Have what is missing of the wanted files, the first of which every run has. artifacts: their folder in the store. Raises
    ConfigurationError."""
    stands = f"{past.status} {past.ended_ms}"
    is_copy = files.fetched.exists() and not files.is_driven
    is_old = is_copy and (past.status == "RUNNING" or files.fetched.read_text(encoding="utf-8") != stands)
    if is_old or not all(file.exists() for file in wanted):
        brought = store.fetch(past.run_id, artifacts, files.path, anew=is_old)
        if is_old or wanted[0].name in brought:
            files.fetched.write_text(stands, encoding="utf-8")
