"""A folder with all that tells more of a failure than its line: tracebacks, output of processes, and records of runs.

log.txt           every line that was printed, where the folder was named
failures.txt      each failure with its traceback, or with all that the process said
NAME/             settings and records of the runs of one part or case
"""

from __future__ import annotations

import io
import re
import tarfile
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

_LOG, _FAILURES, _PACKED = "log.txt", "failures.txt", "records.tar.gz"
_MOST_BYTES: Final = 4 << 20  # of a file that is kept
_RECORDS: Final = ("*.txt", "*.json", "*.jsonl", "*.yaml", "*.log")


class Kept:
    """Any thread may call it."""

    def __init__(self, folder: Path | None = None) -> None:
        """folder: None: one in /tmp, when something has failed."""
        self._named = folder is not None
        self._folder = folder
        self._writing = threading.Lock()
        self._found: dict[str, bytes] = {}  # of records, by their place in the archive

    @property
    def place(self) -> Path | None:
        """None while nothing is kept."""
        return self._folder

    def line(self, line: str) -> None:
        if self._named:
            self._append(_LOG, f"{line}\n")

    def failure(self, line: str, details: str) -> None:
        self._append(_FAILURES, f"{line}\n{details.rstrip()}\n\n" if details.strip() else f"{line}\n\n")

    def records(self, project: Path, name: str) -> None:
        """Keep what the runs in the folder of a project have told of themselves."""
        target = re.sub(r"\W+", "-", name).strip("-") or "run"
        found = {each: f"{target}/{each.name}" for each in project.glob("*.yaml")}
        for kind in _RECORDS:
            found |= {
                each: f"{target}/{each.parent.name}/{each.name}" for each in project.glob(f".orchestrator/*/{kind}")
            }
        with self._writing:
            for file, place in found.items():
                with suppress(OSError):  # it goes with its run
                    if file.stat().st_size <= _MOST_BYTES:
                        self._found[place] = file.read_bytes()
            with suppress(OSError):
                self._pack()

    def _pack(self) -> None:
        whole = self._made() / _PACKED
        unfinished = whole.with_suffix(".part")
        with tarfile.open(unfinished, "w:gz") as archive:
            for place, data in self._found.items():
                told = tarfile.TarInfo(place)
                told.size = len(data)
                archive.addfile(told, io.BytesIO(data))
        unfinished.replace(whole)

    def _append(self, name: str, text: str) -> None:
        with self._writing, suppress(OSError), (self._made() / name).open("a", encoding="utf-8") as file:
            file.write(text)

    def _made(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="gpu-failures-", dir="/tmp"))
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder
