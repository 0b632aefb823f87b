"""What git says of a folder, without touching it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.provenance import code


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t.invalid"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "a.py").write_text("1\n")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


def test_a_clean_tree_is_its_commit(repository: Path) -> None:
    found = code.capture(repository)
    assert found is not None
    assert (found.commit, found.dirty, found.root) == (
        git(repository, "rev-parse", "HEAD"),
        False,
        repository.resolve(),
    )


def test_changed_staged_deleted_and_untracked_files_make_it_dirty(repository: Path) -> None:
    (repository / "b c.py").write_text("2\n")
    (repository / "sub").mkdir()
    (repository / "sub" / "d.py").write_text("3\n")
    git(repository, "add", "sub")
    (repository / "a.py").unlink()
    found = code.capture(repository / "sub")
    assert found is not None
    assert sorted(found.changed) == ["a.py", "b c.py", "sub/d.py"]
    assert found.dirty


def test_ignored_files_do_not_count(repository: Path) -> None:
    (repository / ".gitignore").write_text("*\n")
    found = code.capture(repository)
    assert found is not None
    assert not found.dirty


def test_a_repository_without_a_commit_is_dirty(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    found = code.capture(tmp_path)
    assert found is not None
    assert (found.commit, found.dirty) == (None, True)


def test_no_repository_is_none(tmp_path: Path) -> None:
    assert code.capture(tmp_path) is None


def test_variables_of_an_outer_git_are_not_obeyed(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(repository / "nowhere"))
    assert code.capture(repository) is not None


def test_no_git_is_none(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))
    assert code.capture(repository) is None
