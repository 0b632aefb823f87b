"""A store that was copied to another place keeps its artifacts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.tracking import Store, Tracker


def _run_with_artifact(folder: Path) -> str:
    store = Store(None, folder)
    tracker = Tracker.create(store, store.experiment("e"), None, every_s=1.0)
    (folder / "note.txt").write_text("kept")
    tracker.artifact(folder / "note.txt", "run")
    tracker.end("FAILED")
    assert tracker.trouble is None
    return tracker.run_id


@pytest.mark.ray
@pytest.mark.filterwarnings("default::sqlalchemy.exc.SADeprecationWarning")  # of MLflow's own use of it
def test_a_copy_finds_its_own_artifacts_and_runs_are_found_by_name(tmp_path: Path) -> None:
    original, copy = tmp_path / "here" / ".orchestrator", tmp_path / "there" / ".orchestrator"
    original.mkdir(parents=True)
    run_id = _run_with_artifact(original)
    shutil.copytree(original, copy)
    shutil.rmtree(original)
    store = Store(None, copy)
    target = tmp_path / "fetched"
    target.mkdir()
    store.fetch(run_id, "run", target)
    assert (target / "note.txt").read_text() == "kept"
    other = _run_with_artifact(copy)
    assert (copy / "artifacts" / other / "artifacts" / "run" / "note.txt").exists()

    # Runs are named by their id, by its beginning, or by `last`.
    reopened = Tracker.reopen(store, run_id, every_s=1.0)
    assert store.find(run_id).status == "RUNNING"
    reopened.end("KILLED")
    assert store.find(run_id[:8]).status == "KILLED"
    assert store.find("last").run_id == other
    with pytest.raises(UsageError, match="there is no run zzz"):
        store.find("zzz")
    with pytest.raises(UsageError, match="2 runs begin with ''"):
        store.find("")
