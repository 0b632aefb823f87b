"""Files of a run or a sweep that is driven elsewhere, copied from the store; and copied anew once it has gone on.

A folder that is no copy may be behind, too: another machine goes on with a run whose driver is lost, and the first one comes
back. The last driver did not hold this folder then. Its journal in the store begins like the one here, and goes on otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator.common import temporary
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

    left = not files.fetched.exists() and not files.is_driven and is_behind(store, past.run_id, past.driver, files)

    def is_here() -> bool:
        return not left and not is_old() and all(file.exists() for file in wanted)

    if not is_here():  # it may be a repetition that was killed with its command
        with suppress(UsageError):  # of a project that this user may only read
            checkout.sweep(files.path.parent / checkout.FOLDER)
    if not is_here():
        anew = left or is_old()
        if left:
            files.untold.unlink(missing_ok=True)  # and what MLflow lacks of it is not sent (`recording.unsent`)
        brought = store.fetch(past.run_id, artifacts, files.path, anew=anew)
        if anew or wanted[0].name in brought:
            files.fetched.write_text(stands, encoding="utf-8")


def is_behind(store: Store, run_id: str, driver: tuple[str, str], files: RunFolder) -> bool:
    """Whether the run has gone on without this folder. driver: who drove it last, as the store tells: process and host. Raises
    ConfigurationError where the store's journal cannot be had."""
    if not all(driver) or not files.journal.exists() or files.was_last_leased_by(*driver):
        return False
    with temporary.folder() as place:
        store.fetch(run_id, "run", place, anew=True, only=files.journal.name)
        there = place / files.journal.name
        told = there.read_bytes() if there.exists() else b""
    whole = told[: told.rfind(b"\n") + 1]
    with files.journal.open("rb") as journal:
        return journal.read(len(whole)) != whole
