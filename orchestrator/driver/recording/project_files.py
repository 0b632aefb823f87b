"""The project's files that a run depends on: whether they are still what was recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.provenance.code.worktree import WorkTree
from orchestrator.provenance.data.hashing import Scan, scanned_again


class ProjectFiles:
    """Inputs that the settings declare, and modules of the snapshot that workers have imported."""

    def __init__(
        self,
        project: Path,  # from which the run was launched, or goes on
        work: WorkTree | None,  # of the snapshot; None where there is none
        scans: Mapping[str, Scan],  # of the inputs, by path
    ) -> None:
        self.project = project
        self._top = None if work is None else work.root
        self._scans = dict(scans)

    def changed_inputs(self) -> list[str]:
        """The inputs that have other bytes now. Reads only what was written since it was last looked at."""
        changed = []
        for path, before in self._scans.items():
            now = scanned_again(self.project, path, before)
            if now is None:
                changed.append(path)
            else:
                self._scans[path] = now
        return changed

    def changed_modules(self, modules: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """The files of modules that have other bytes now. modules: by name, with `kind`, `path` and `sha256` as in
        `code.json`."""
        of_snapshot = {each["path"]: each["sha256"] for each in modules.values() if each["kind"] == "snapshot"}
        return [
            path
            for path, sha256 in of_snapshot.items()
            if self._top is not None and _sha256(self._top / path) != sha256
        ]


def _sha256(file: Path) -> str | None:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None
