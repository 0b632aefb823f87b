"""The view of a run that another process drives."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from orchestrator.cli.watch import Tail, watch
from orchestrator.driver.folders import RunFolder, project_folder
from orchestrator.provenance.tracking import Store, Tracker
from tests.projects import Project
from tests.refusals import refused


def test_a_tail_gives_whole_lines_once_and_all_again_where_the_file_was_cut(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    tail = Tail(file)
    assert list(tail.new()) == []
    file.write_text('{"step": 0}\n{"step": 1}\n{"st')
    assert [line["step"] for line in tail.new()] == [0, 1]
    file.write_text('{"step": 0}\n{"step": 1}\n{"step": 2}\n')
    assert [line["step"] for line in tail.new()] == [2]
    file.write_text('{"step": 0}\n')
    assert [line["step"] for line in tail.new()] == [0]


def test_a_run_is_driven_while_its_folder_is_locked(tmp_path: Path) -> None:
    assert not RunFolder(tmp_path, "a").is_driven
    files = RunFolder(tmp_path, "a")
    files.lease()
    assert RunFolder(tmp_path, "a").is_driven
    files.release()
    assert not RunFolder(tmp_path, "a").is_driven


@pytest.mark.ray
@pytest.mark.long
def test_a_run_is_watched_to_its_end(digits: Project) -> None:
    """And what its settings, its plan and the function that hears of it say is so."""
    launched = digits.start("conf=digits", "run.steps=60", "output=json")
    assert launched.stderr is not None
    shown = iter(launched.stderr.readline, "")
    assert any(line.startswith("step ") or "after step" in line or "worker 0" in line for line in shown)
    watched = digits.run("watch=last", "output=json")
    rest, _ = launched.communicate()
    report = json.loads(rest.splitlines()[-1])
    assert (watched.code, watched.report["status"], watched.report["steps"]) == (0, "finished", 60)
    assert watched.report["run_id"] == report["run_id"]
    assert watched.report["loss"] == report["loss"]
    planned = digits.run("conf=digits", "plan=true", "output=json")
    assert planned.report["parameters"] == 38378
    assert [each["shards"] for each in planned.report["workers"]] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_ctrl_c_ends_the_view_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = project_folder(tmp_path)
    store = Store(None, folder)
    with store.usable():
        tracker = Tracker.create(store, store.experiment("spirals"), "spirals", every_s=60)
    files = RunFolder(folder, tracker.run_id)
    files.lease()
    files.trace.write_text(json.dumps({"step": 6, "loss": (0.5).hex()}) + "\n")

    def pressed(_seconds: float) -> None:
        raise KeyboardInterrupt("SIGINT")

    monkeypatch.setattr(time, "sleep", pressed)
    try:
        seen = watch(tmp_path, tracker.run_id, None)
    finally:
        files.release()
    assert (seen.exit_code, seen.status, seen.interrupted, seen.steps) == (130, "running", True, 7)
    assert f"run {tracker.run_id} goes on without being watched, after step 7" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("trace", "garbage{"),
        ("trace", "[1]"),
        ("trace", '{"step": "one", "loss": "0x1p-1"}'),
        ("trace", '{"step": 1, "loss": "zz"}'),
        ("journal", "null"),
        ("journal", '{"event": "evaluated", "step": 1}'),
        ("journal", '{"event": "worker_lost", "step": 1}'),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, name: str, line: str) -> None:
    folder = project_folder(tmp_path)
    store = Store(None, folder)
    with store.usable():
        tracker = Tracker.create(store, store.experiment("spirals"), "spirals", every_s=60)
    file: Path = getattr(RunFolder(folder, tracker.run_id), name)
    file.write_text(json.dumps({"event": "begun", "step": 0, "loss": (0.5).hex()}) + f"\n{line}\n")
    with refused("record.line-damaged", f"{file.name} is damaged: line 2 "):
        watch(tmp_path, tracker.run_id, None)
