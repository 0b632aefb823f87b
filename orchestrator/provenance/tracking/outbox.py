"""The items of a run that MLflow has not got yet: a file in the run's folder, which has contents exactly as long as something
is missing.

    {"store": null}                                             of whom it is asked: an address, or null for the project's own
    {"metrics": {"train/loss": 0.5}, "step": 7, "ms": 1700000}  measured then
    {"tag": ["RUN_ID", "digest", "5e9b"]}
    {"inputs": [["data/digits", "4e8d", "data/digits"]]}        name, digest, place
    {"artifact": ["card.md", "run"]}                            of the run's folder; into which folder of its artifacts
    {"model": {...}, "register": ["digits", "newest"]}          see `provenance.tracking.models`
    {"end": "FINISHED", "ms": 1700001}

Doing one of these twice comes to the same as doing it once, so whoever was interrupted begins anew: MLflow knows a metric by
its key, step, value and time, and the time is the one in this file.

A file that cannot be opened, emptied or removed ends no run: what is to be in it is written with the next item, and what MLflow
has got already it gets twice.

It does not send (`tracker` does), and does not keep two processes from sending the same at once (the lease of the run's
folder does).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.records import lines
from orchestrator.records.lines import LineFile

FILE = "mlflow.jsonl"
Item = Mapping[str, Any]


class Outbox:
    """The items of one run that its MLflow store has not got. folder: of the run; store: as in the first line. The file is
    made with the first item."""

    def __init__(self, folder: Path, store: str | None) -> None:
        self.folder = folder
        self._path = folder / FILE
        self._store = store
        self._file: LineFile | None = None
        self._is_empty = not self._path.exists() or not self._path.stat().st_size
        self._unwritten: list[Item] = []

    def add(self, item: Item) -> None:
        self._unwritten.append(item)
        with suppress(OSError):
            self._write()

    def sync(self) -> None:
        """Wait until it is on the disk. Raises OSError."""
        self._write()
        if self._file is not None:
            self._file.sync()

    def clear(self) -> None:
        """MLflow has got everything."""
        self._unwritten.clear()
        with suppress(OSError):
            if not self._is_empty:
                self._open().keep(0)
                self._is_empty = True
        self.close()

    def remove(self) -> None:
        """MLflow has got everything, and nothing will follow."""
        self._unwritten.clear()
        self.close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
            self._is_empty = True

    def close(self) -> None:
        """For now; the next item opens the file again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self) -> None:
        """Raises OSError where the file cannot be opened."""
        if self._unwritten:
            file = self._open()
            file.append([*([{"store": self._store}] if self._is_empty else []), *self._unwritten])
            self._is_empty = False
            self._unwritten.clear()

    def _open(self) -> LineFile:
        if self._file is None:
            self.folder.mkdir(exist_ok=True)
            self._file = LineFile(self._path)
            self._is_empty = not self._path.stat().st_size
        elif self._file.is_removed:
            self._file.restore()
        return self._file


def store_of(path: Path) -> str | None:
    """For a damaged file, which `read` refuses, it may be None."""
    try:
        return next((line["store"] for line in lines.read(path) if "store" in line), None)
    except ValueError:
        return None


def read(path: Path) -> list[Item]:
    """The items to be sent, in order. An end behind which something follows was none: the run was resumed. Raises ValueError
    for a damaged file."""
    found = [line for line in lines.written(path) if "store" not in line]
    return [item for place, item in enumerate(found) if "end" not in item or place == len(found) - 1]
