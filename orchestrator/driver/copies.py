"""Files of a run or a sweep that is driven elsewhere, copied from the store; and copied anew once it has gone on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator.driver.folders import RunFolder
from orchestrator.errors import UsageError
from orchestrator.provenance.code import checkout
from orchestrator.provenance.tracking import Past, Store


def bring(store: Store, past: Past, files: RunFolder, artifacts: str, wanted: Sequence[Path]) -> None:
    """Have what is missing of the wanted files, the first of which every run has. artifacts: their folder in the store. Raises
    ConfigurationError."""
    stands = f"{past.status} {past.ended_ms}"

    def is_old() -> bool:
        is_copy = files.fetched.exists() and not files.is_driven
        return is_copy and (past.status == "RUNNING" or files.fetched.read_text(encoding="utf-8") != stands)

    def is_here() -> bool:
        return not is_old() and all(file.exists() for file in wanted)

    if not is_here():  # it may be a repetition that was killed with its command
        with suppress(UsageError):  # of a project that this user may only read
            checkout.sweep(files.path.parent / checkout.FOLDER)
    if not is_here():
        anew = is_old()
        brought = store.fetch(past.run_id, artifacts, files.path, anew=anew)
        if anew or wanted[0].name in brought:
            files.fetched.write_text(stands, encoding="utf-8")
