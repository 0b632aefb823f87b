"""Temporary folders that outlive nobody for long; the processes that are killed are true ones."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from threading import Thread

import pytest

from orchestrator.common import locks, temporary

_FORK = multiprocessing.get_context("fork")


def killed(parent: Path, prefix: str) -> None:
    with temporary.folder(parent, prefix) as place:
        (place / "file").write_text("x")
        os.kill(os.getpid(), signal.SIGKILL)


def leave(parent: Path, prefix: str = temporary.PREFIX) -> Path:
    """The folder of a process that was killed in its block."""
    before = set(parent.iterdir())
    process = _FORK.Process(target=killed, args=(parent, prefix))
    process.start()
    process.join()
    (left,) = set(parent.iterdir()) - before
    return left


def test_a_folder_is_gone_after_its_block(tmp_path: Path) -> None:
    with temporary.folder(tmp_path) as place:
        (place / "below").mkdir()
        assert place.parent.parent == tmp_path
        assert place.parent.stat().st_mode & 0o077 == 0
    with pytest.raises(KeyboardInterrupt), temporary.folder(tmp_path):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_the_next_removes_what_a_killed_process_left_there(tmp_path: Path) -> None:
    left = leave(tmp_path)
    assert list(left.rglob("file"))
    with temporary.folder(tmp_path) as first, temporary.folder(tmp_path) as second:
        assert not left.exists()
        assert first.exists()
        assert second.exists()


def test_other_names_and_other_places_are_left_alone(tmp_path: Path) -> None:
    left, elsewhere = leave(tmp_path, ".uploading-"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"{temporary.PREFIX}file").touch()
    (tmp_path / f"{temporary.PREFIX}link").symlink_to(elsewhere)
    before = set(tmp_path.iterdir())
    with temporary.folder(tmp_path), temporary.folder(elsewhere, ".uploading-"):
        pass
    assert left.exists()
    assert set(tmp_path.iterdir()) == before
    with temporary.folder(tmp_path, ".uploading-"):
        assert not left.exists()


def test_one_that_was_made_and_not_yet_locked_may_be_taken_away_and_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{temporary.PREFIX}empty").mkdir()  # of a process that was killed there
    attempts = []

    def try_lock(descriptor: int) -> bool:
        attempts.append(descriptor)
        return len(attempts) > 1

    monkeypatch.setattr(locks, "try_lock", try_lock)
    with temporary.folder(tmp_path) as place:
        assert place.exists()
        assert not (tmp_path / f"{temporary.PREFIX}empty").exists()
    assert len(attempts) == 2


def test_many_at_once_take_nothing_from_each_other(tmp_path: Path) -> None:
    problems: list[BaseException] = []

    def use() -> None:
        try:
            for number in range(50):
                with temporary.folder(tmp_path) as place:
                    (place / "file").write_text(str(number))
                    assert (place / "file").read_text() == str(number)
        except BaseException as error:
            problems.append(error)

    threads = [Thread(target=use) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not problems
