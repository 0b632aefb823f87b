"""A module that was edited after its import is noticed, and imported anew; one that was not is left alone."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.provenance.code import marks

TEXT = """
import functools
from dataclasses import dataclass


def plain(n, names=frozenset({"a", "b"})):
    return n in {"x", "y", "z"}, [each for each in names]


@functools.cache
def kept(n):
    return n


@dataclass
class Box:
    side: int = 1

    @property
    def area(self):
        return self.side**2

    @classmethod
    def of(cls, side):
        return cls(side)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """With the modules `boxes`, and `users` that imports it."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "boxes.py").write_text(TEXT)
    (tmp_path / "users.py").write_text("from boxes import Box\n")
    importlib.import_module("users")
    yield tmp_path
    for name in ("boxes", "users"):
        sys.modules.pop(name, None)


def test_what_was_not_edited_stays(project: Path) -> None:
    before = sys.modules["boxes"]
    before.plain("x")
    before.kept(1)
    assert before.Box.of(2).area == 4
    assert marks.forget_edited(project) == []
    assert sys.modules["boxes"] is before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("n in {", "n not in {"),
        ("side**2", "side**3"),
        ("return cls(side)", "return cls(1)"),
        ("def kept", "def other"),
    ],
)
def test_an_edit_has_all_of_the_project_imported_anew(old: str, new: str, project: Path) -> None:
    (project / "boxes.py").write_text(TEXT.replace(old, new))
    assert marks.forget_edited(project) == ["boxes"]
    assert not {"boxes", "users"} & sys.modules.keys()


def test_a_module_that_is_being_edited_is_no_reason_to_fail(project: Path) -> None:
    (project / "boxes.py").write_text("def half(\n")
    assert marks.forget_edited(project) == ["boxes"]
