"""The project's files that a run depends on: whether they are still what was recorded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from orchestrator.provenance.code import objects
from orchestrator.provenance.code.worktree import WorkTree
from orchestrator.provenance.data.hashing import Scan, scanned_again


class ProjectFiles:
    """Inputs that the settings declare, and modules of the snapshot that workers have imported."""

    def __init__(
        self,
        project: Path,  # from which the run was launched, or goes on
        work: WorkTree | None,  # of the snapshot; None where there is none
        scans: Mapping[str, Scan],  # of the inputs, by path
        *,
        grow: bool = False,  # whether further files in them do not count
    ) -> None:
        self.project = project
        self._work = work
        self._scans = dict(scans)
        self._grow = grow

    @property
    def names(self) -> dict[str, Collection[str]]:
        """The files of each input, relative to it."""
        return {path: scan.entries.keys() for path, scan in self._scans.items()}

    def of(self, checkout: Path) -> ProjectFiles:
        """The same inputs in a checkout, into which workers may write a cache."""
        return ProjectFiles(checkout, None, self._scans, grow=True)

    def changed_inputs(self, among: Collection[str] | None = None) -> list[str]:
        """The inputs, of all or among some, that have other bytes now. Reads only what was written since it was last looked
        at."""
        changed = []
        for path, before in self._scans.items():
            if among is not None and path not in among:
                continue
            now = scanned_again(self.project, path, before, grows=self._grow)
            if now is None:
                changed.append(path)
            else:
                self._scans[path] = now
        return changed

    def changed_modules(self, modules: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """The files of modules that have other bytes now. modules: by name, with `kind`, `path` and `sha256` as in
        `code.json`; where there are none yet, every module of the snapshot may be imported."""
        work = self._work
        if work is None:
            return []
        if not modules:
            code = {path: before for path, before in work.entries.items() if path.endswith(b".py")}
            now = {path: _entry(objects.at(work.root, path), work.algorithm) for path in code}
            return [os.fsdecode(path) for path, before in code.items() if now[path] != before]
        of_snapshot = {each["path"]: each["sha256"] for each in modules.values() if each["kind"] == "snapshot"}
        return [path for path, sha256 in of_snapshot.items() if _sha256(work.root / path) != sha256]


def _entry(file: Path, algorithm: str) -> objects.Entry | None:
    try:
        return objects.entry(file, algorithm)
    except OSError:
        return None


def _sha256(file: Path) -> str | None:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None
