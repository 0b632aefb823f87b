"""Folders are listed by name in the processes of a run, whatever order their file system has."""

from __future__ import annotations

import glob
import os
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.common import listings

NAMES = ["a", "b", "c.txt", "d", "z", "é"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Lies on a file system that has its entries in another order each time."""
    listdir, scandir, draws = os.listdir, os.scandir, random.Random(0)

    def listed(path: Any = None) -> list[Any]:
        return draws.sample(names := listdir(path), len(names))

    def scanned(path: Any = None) -> listings._Listed:
        with scandir(path) as found:
            return listings._Listed(iter(draws.sample(entries := list(found), len(entries))))

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", listed)
        patched.setattr(os, "scandir", scanned)
        patched.setattr(os, "supports_fd", set(os.supports_fd))
        for name in NAMES:
            (tmp_path / "listed" / name).mkdir(parents=True)
        patched.chdir(tmp_path / "listed")
        yield tmp_path / "listed"


WAYS: dict[str, Callable[[], list[Any]]] = {
    "listdir": lambda: os.listdir(),  # noqa: PTH208
    "listdir of bytes": lambda: list(map(os.fsdecode, os.listdir(b"."))),  # noqa: PTH208
    "scandir": lambda: [entry.name for entry in os.scandir()],
    "glob": lambda: glob.glob("*"),  # noqa: PTH207
    "iterdir": lambda: [place.name for place in Path().iterdir()],
    "Path.glob": lambda: [place.name for place in Path().glob("*")],
    "walk": lambda: next(os.walk("."))[1],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_folder_is_listed_by_name(way: str) -> None:
    assert any(WAYS[way]() != NAMES for _ in range(5)), "the order is that of the file system otherwise"
    listings.by_name()
    assert all(WAYS[way]() == NAMES for _ in range(5))


def test_who_asks_again_wraps_nothing_around_it() -> None:
    """A test makes hundreds of members in its process, and each asks."""
    listings.by_name()
    once = os.listdir, os.scandir
    listings.by_name()
    assert (os.listdir, os.scandir) == once


def test_entries_are_those_of_the_system(folder: Path) -> None:
    listings.by_name()
    with os.scandir(folder) as entries:
        first = next(entries)
        assert first.is_dir()
        assert first.path == str(folder / "a")
    with closing(os.scandir(str(folder))) as entries:
        next(entries)
    assert list(entries) == []
    with pytest.raises(FileNotFoundError):
        os.scandir("missing")
    (folder / "file").touch()
    with pytest.raises(NotADirectoryError):
        [*(folder / "file").iterdir()]
    assert {os.listdir, os.scandir} <= os.supports_fd
