"""Which files git knows in a folder, and that nothing of an outer git is obeyed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.provenance.code.git import GitError, known_files, run
from tests.provenance.code.repositories import create, git, write


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return create(tmp_path / "project", {"a.py": "a\n", "sub/b.py": "b\n", ".gitignore": "*.tmp\n"})


def test_files_that_git_tracks_or_would_track(repository: Path) -> None:
    """Staged and not, deleted ones too, none that are ignored; relative to the folder that is asked for."""
    write(repository, {"sub/c d.py": "", "sub/\udcff.py": "", "e.py": "", "f.tmp": ""})
    git(repository, "add", "e.py")
    (repository / "a.py").unlink()
    assert known_files(repository) == [".gitignore", "a.py", "e.py", "sub/b.py", "sub/c d.py", "sub/\udcff.py"]
    assert known_files(repository / "sub") == ["b.py", "c d.py", "\udcff.py"]


def test_no_repository_and_no_git_are_none(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert known_files(tmp_path) is None
    monkeypatch.setenv("PATH", str(repository))
    assert known_files(repository) is None


def test_variables_of_an_outer_git_are_not_obeyed(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(repository / "nowhere"))
    assert known_files(repository) == [".gitignore", "a.py", "sub/b.py"]


def test_a_refusal_names_the_command_whatever_options_come_before_it(repository: Path) -> None:
    with pytest.raises(GitError, match=r"^git cat-file: "):
        run(repository, "-c", "core.bigFileThreshold=1m", "--literal-pathspecs", "cat-file", "-t", "nothing")


def test_an_interrupt_typed_at_a_terminal_is_not_for_git(repository: Path) -> None:
    """It reaches the group of the command, which ends in order: its code is still recorded."""
    group = int(run(repository, "-c", "alias.group=!ps -o pgid= -p $PPID", "group"))
    assert group != os.getpgrp()
