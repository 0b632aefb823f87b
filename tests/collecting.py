"""Leaves out the tests that `-m` does not select, before they are imported or made: half of all tests, and a third of the
time that collecting takes. And keeps in one process those files whose tests take most of their time for the same."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

MARKS = re.compile(r"^pytestmark = (?:\[.*?\]$|[^\[]+?$)", re.MULTILINE | re.DOTALL)
# Files by the beginning of their name, and what each process that runs one of them would have to do first.
TOGETHER = {
    "tests/test_architecture.py": "the package is read and parsed",
    "tests/test_docs.py": "the package is read and parsed",
    "tests/test_errors.py": "the package is read and parsed",
    "tests/test_fields.py": "the package is read and parsed",
    "tests/test_private_names.py": "the package is read and parsed",
    "tests/test_prose.py": "the package is read and parsed",
    "tests/test_rules.py": "the package is read and parsed",
    "tests/attacks/test_trust.py": "MLflow is imported",
    "tests/provenance/tracking/": "MLflow is imported",
}
_left_out: set[str] = set()


def begin(expression: str, named: Iterable[str]) -> None:
    """Called before the first file is read, with the expression of `-m` and what the command line names. A named file is
    collected whole, so that pytest says of each test in it that `-m` deselects it."""
    _left_out.clear()
    if not any(".py" in name for name in named):
        _left_out.update(marks_left_out(expression))


def marks_left_out(expression: str) -> set[str]:
    """The marks that no selected test has, as far as `a and not b and not c` says it."""
    parts = [part.strip() for part in re.split(r"\band\b", expression)]
    if not all(re.fullmatch(r"(not )?\w+", part) for part in parts):
        return set()
    return {part.removeprefix("not ") for part in parts if part.startswith("not ")}


def is_mark_left_out(mark: str) -> bool:
    return mark in _left_out


def is_file_left_out(path: Path) -> bool:
    """By `pytestmark` in its text."""
    if not _left_out or path.suffix != ".py" or not path.is_file():
        return False
    marks = MARKS.search(path.read_text(encoding="utf-8"))
    return marks is not None and not _left_out.isdisjoint(re.findall(r"pytest\.mark\.(\w+)", marks[0]))


def is_left_out(test: object) -> bool:
    """By its decorators."""
    return any(mark.name in _left_out for mark in getattr(test, "pytestmark", ()) if hasattr(mark, "name"))


def unit(file: str) -> str:
    """Names the tests that one process runs: those of the file, or of all files that have the same to do first."""
    return next((what for beginning, what in TOGETHER.items() if file.startswith(beginning)), file)


class ByFile(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Files to processes, as `--dist loadfile`: those of `TOGETHER` to one."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(super()._split_scope(nodeid))
