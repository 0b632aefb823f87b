"""A module that was edited after its import is noticed, and imported anew; one that was not is left alone."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

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


def _imported(text: str, project: Path) -> ModuleType:
    (project / "boxes.py").write_text(text)
    sys.modules.pop("boxes")
    importlib.invalidate_caches()
    return importlib.import_module("boxes")


def test_a_value_that_was_edited_after_a_first_look_has_all_imported_anew(project: Path) -> None:
    _imported("SIDES = [4]\n" + TEXT, project)
    assert marks.forget_edited(project) == []
    (project / "boxes.py").write_text("SIDES = [5]\n" + TEXT)
    assert marks.forget_edited(project) == ["boxes"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SCALE = 1.0", "SCALE = -1.0"),
        ("side: int = 1", "side: int = 2"),
        ("n=8", "n=16"),
        ("low=0.5", "low=None"),
        ('names = ("a",)', 'names = ("b",)'),
    ],
)
def test_a_plain_value_is_compared_with_the_text(old: str, new: str, project: Path) -> None:
    text = f'SCALE = 1.0\n{TEXT}\n    def of_size(self, n=8, *, low=0.5):\n        pass\n\n    names = ("a",)\n'
    module = _imported(text, project)
    assert marks.holds(module, text.encode())
    assert marks.is_current(module, text.encode())
    assert not marks.holds(module, text.replace(old, new).encode())


@pytest.mark.parametrize(
    "text",
    [
        "_calls = 0\ndef count():\n    global _calls\n    _calls += 1\ncount()\n",
        "import enum\nclass Kind(enum.IntEnum):\n    ONE = 1\n",
        "from dataclasses import dataclass\n@dataclass(slots=True)\nclass Box:\n    side: int = 1\n",
        "class Box:\n    side = 1\nBox.side = 2\n",
        "SIDE = 1\nif SIDE:\n    SIDE = 2\n",
        "SIDES = [1]\nSIDES.append(2)\n",
    ],
)
def test_what_a_module_makes_of_its_own_values_is_no_edit(text: str, project: Path) -> None:
    assert marks.holds(_imported(text, project), text.encode())


def test_tests_that_pytest_has_rewritten_are_not_edited() -> None:
    """Its modules would be dropped in the middle of a session."""
    here = Path(__file__)
    before = dict(sys.modules)
    assert marks.forget_edited(here.parent) == []
    assert dict(sys.modules) == before
