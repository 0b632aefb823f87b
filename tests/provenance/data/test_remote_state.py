"""Data that DVC's remote lacks are named with the command that pushes them, and a remote that does not answer holds nobody
up."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrator.provenance.data import dvc_files
from orchestrator.provenance.data.remote_state import unpushed
from tests.provenance.data.dvc_project import capture, listing

# DVC's own use of a library
pytestmark = [pytest.mark.filterwarnings("ignore:_NoneStep.value will soon raise"), pytest.mark.slow]

PATHS = ["data/imgs", "raw.csv"]


def remote_of(project: Path) -> Path:
    found = dvc_files.storage(project)
    assert found is not None
    return Path(found.remotes[str(found.default)])


def test_what_was_pushed_is_not_mentioned(tracked: Path) -> None:
    inputs, before = capture(tracked, PATHS), listing(tracked)
    assert unpushed(tracked, inputs) == []
    assert listing(tracked) == before


@pytest.mark.parametrize("kind", ["version_aware", "worktree"])
def test_a_remote_that_keeps_versions_is_not_asked_for_objects(kind: str, tracked: Path) -> None:
    """DVC refuses to ask it."""
    inputs = capture(tracked, ["raw.csv"])
    settings = tracked / ".dvc" / "config"
    settings.write_text(settings.read_text().replace("url =", f"{kind} = true\n    url ="))
    (said,) = unpushed(tracked, inputs)
    assert said.startswith("raw.csv: DVC's remote far keeps versions, and is not asked; dvc push raw.csv")


def test_what_the_remote_lacks_is_said_with_the_command(tracked: Path) -> None:
    """An object of a folder, and the whole of a file."""
    inputs = capture(tracked, PATHS)
    images, raw = (item.outs[0].md5 or "" for item in inputs)
    storage = dvc_files.storage(tracked)
    assert storage is not None
    listed = dvc_files.manifest(storage.place(images)) or {}
    inside = sorted(listed.values())[0]
    for md5 in (inside, raw):
        (remote_of(tracked) / "files" / "md5" / md5[:2] / md5[2:]).unlink()
    name, number = storage.default, len({*listed.values(), images})
    assert unpushed(tracked, inputs) == [
        f"data/imgs: DVC's remote {name} lacks 1 of its {number} objects; dvc push data/imgs",
        f"raw.csv: DVC's remote {name} lacks 1 of its 1 objects; dvc push raw.csv",
    ]


def test_without_a_remote_nobody_else_can_have_them(tracked: Path) -> None:
    inputs = capture(tracked, ["raw.csv"])
    (tracked / ".dvc" / "config").write_text("")
    (told,) = unpushed(tracked, inputs)
    assert told.startswith("raw.csv: there is no DVC remote, so nobody else can have it; dvc remote add -d")


def test_a_remote_that_does_not_answer_is_waited_for_no_longer(tracked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, done = capture(tracked, ["raw.csv"]), threading.Event()

    def silent(*_: Any) -> list[str]:
        done.wait()
        return []

    monkeypatch.setattr(dvc_files, "lacking", silent)
    try:
        (told,) = unpushed(tracked, inputs, patience_s=0.01)
    finally:
        done.set()
    assert "has not answered in 0.01 s" in told


def test_a_remote_that_fails_is_said_without_its_password(tracked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> list[str]:
        raise OSError("no route to https://me:swordfish@host.invalid/x")

    inputs = capture(tracked, ["raw.csv"])
    monkeypatch.setattr(dvc_files, "lacking", failing)
    (told,) = unpushed(tracked, inputs)
    assert told.endswith("cannot be asked whether it has the data: OSError: no route to https://host.invalid/x")
