"""A power cut: what a run is made of is on the disk before its first checkpoint is, and so are the folders."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from orchestrator.checkpoint.storage import LocalFolder
from orchestrator.driver.folders import RunFolder, project_folder, put, read_json, write_json
from tests.refusals import refused


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files for which fsync was called, in order."""
    found: list[Path] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        found.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return found


def test_what_a_run_is_made_of_is_synced_once_with_its_folders(tmp_path: Path, synced: list[Path]) -> None:
    files = RunFolder(project_folder(tmp_path), "a")
    made_of = [files.settings, files.bundle, files.data, files.environment, files.origins, files.identity, files.code]
    for path in made_of:
        write_json(path, {})
    files.sync()
    assert {*made_of, files.path, files.path.parent, tmp_path} == set(synced)
    assert len(synced) == len(set(synced))
    assert max(map(synced.index, made_of)) < synced.index(files.path)  # a name that is there leads to something
    synced.clear()
    files.sync()
    assert synced == []
    write_json(files.environment, {"nodes": {}})  # a worker of another node has come
    files.sync()
    assert synced == [files.environment, files.path]


def test_a_file_system_that_has_become_read_only_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_arguments: object, **_options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    (tmp_path / "card.md").write_text("before")
    for name in ("write_bytes", "rename", "unlink"):
        monkeypatch.setattr(Path, name, refuse)
    put(tmp_path / "card.md", "after")
    assert (tmp_path / "card.md").read_text() == "before"


def test_the_name_of_a_file_that_is_not_utf_8_can_be_written(tmp_path: Path) -> None:
    """As of one in an error of the pipeline."""
    name = os.fsdecode(b"\xe9t\xe9.txt")
    write_json(tmp_path / "data.json", {"file": name})
    assert read_json(tmp_path / "data.json") == {"file": name}
    put(tmp_path / "error.txt", f"no file {name}")
    assert (tmp_path / "error.txt").read_text(encoding="utf-8") == r"no file \udce9t\udce9.txt"


def test_the_folders_of_checkpoints_are_on_the_disk_before_their_manifest(tmp_path: Path, synced: list[Path]) -> None:
    place = tmp_path / "new" / "deeper"
    storage = LocalFolder(place)
    assert set(synced) == {tmp_path, tmp_path / "new"}
    storage.put("manifest", [b"1"])
    assert [stat.S_ISDIR(path.stat().st_mode) for path in synced[-1:]] == [True]
    LocalFolder(place)
    assert synced[-1] == place


def test_a_run_whose_folder_cannot_be_made_is_refused(tmp_path: Path) -> None:
    # a project on a file system that is read-only now has its .orchestrator already
    (tmp_path / ".orchestrator").write_text("")
    with refused("project.unwritable", ".orchestrator"):
        RunFolder(tmp_path / ".orchestrator", "a")


def test_what_git_is_to_ignore_is_written_once_a_full_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file stayed empty, and `git add --all` took the runs of the project."""

    def full(path: Path, *_: object, **__: object) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched, refused("project.unwritable", "make room on its disk"):
        patched.setattr(Path, "write_text", full)
        project_folder(tmp_path)
    assert (project_folder(tmp_path) / ".gitignore").read_text() == "*\n"


def test_a_relative_place_of_checkpoints_begins_in_the_projects_folder(tmp_path: Path) -> None:
    """A run that is resumed may work in a checkout."""
    files = RunFolder(project_folder(tmp_path), "a")
    assert files.checkpoints_at("kept") == f"{tmp_path}/kept/a"
    assert files.checkpoints_at("/kept/") == "/kept/a"
    assert files.checkpoints_at("s3://bucket/kept") == "s3://bucket/kept/a"


def test_the_home_in_the_place_of_checkpoints_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a folder `~` appears in the project, whose files are recorded as its code."""
    monkeypatch.setenv("HOME", "/home/me")
    files = RunFolder(project_folder(tmp_path), "a")
    assert files.checkpoints_at("~/kept") == "/home/me/kept/a"
    assert files.checkpoints_at("/~/kept") == "/~/kept/a"
