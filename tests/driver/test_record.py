"""What a run's record makes of what its workers say: here the identity, when there is no snapshot of the code."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from orchestrator.driver.folders import RunFolder
from orchestrator.driver.record import Record
from orchestrator.settings import load

ENVIRONMENT = {"packages": {}, "bits": {"packages_sha256": "p"}}


def identity_of(folder: Path, code: str) -> str:
    """Of a run without git whose pipeline's module has this hash."""
    settings = load([{"run": {"steps": 2}, "pipeline": {"target": "a:B"}}], [])
    files = RunFolder(folder, code)
    nothing = lambda *_: None  # noqa: E731
    tracker: Any = SimpleNamespace(run_id=code, tag=nothing)
    store: Any = SimpleNamespace(of_identity=lambda _: [])
    provenance: Any = SimpleNamespace(inputs=[], obstacles=[])
    record = Record(settings, store, tracker, files, [], provenance, None)
    record.facts = {"initial_parameters": "i"}
    module: dict[str, Any] = {
        "name": "a",
        "file": "/a.py",
        "inside": "a.py",
        "sha256": code,
        "ids": {},
        "repository": None,
        "tracked": False,
    }
    assert record.describe("n", ENVIRONMENT, [module]) == []
    record.compare_with_like("d")
    record.journal.close()
    record.trace.close()
    return str(json.loads(files.identity.read_text())["identity"])


def test_without_git_other_code_is_another_identity(tmp_path: Path) -> None:
    """Or every change would be an alarm."""
    first = identity_of(tmp_path, "1")
    assert identity_of(tmp_path, "2") != first
