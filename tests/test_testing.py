"""Each claim of docs/testing.md is one line and one test, which exists and is run by the command that stands there."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from tests.sources import never_collected

TESTS = Path(__file__).resolve().parent
PAGE = (TESTS.parent / "docs" / "testing.md").read_text()


def claims() -> list[tuple[str, str, str]]:
    """(claim, test, command) of every row of the tables of claims."""
    rows = re.findall(r"^\| (.+?) \| `(\S+\.py::test_\w+)` \| `(make [\w-]+)` \|$", PAGE, re.MULTILINE)
    tables = re.findall(r"^\| claim \|.*\n\|---.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert len(rows) == sum(table.count("\n") for table in tables), "a row is not: claim, one test, one command"
    return rows


def run_by(test: str) -> set[str]:
    """The commands that run a test: by the marks that pyproject.toml describes."""
    file, _, name = test.partition("::")
    tree = _parsed(file)
    module = _marks(node for node in tree.body if isinstance(node, ast.Assign) and _is_marks(node))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    found = [function for function in functions if function.name == name]
    assert found, f"there is no {test}"
    return {command for function in found for command in _commands(function, module)}


@functools.cache
def _parsed(file: str) -> ast.Module:
    return ast.parse((TESTS / file).read_text())


def _is_marks(node: ast.Assign) -> bool:
    return [target.id for target in node.targets if isinstance(target, ast.Name)] == ["pytestmark"]


def _marks(nodes: Iterator[ast.Assign] | list[ast.expr]) -> set[str]:
    return {
        each.attr
        for node in nodes
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Attribute) and each.value.attr == "mark"
    }


def _commands(function: ast.FunctionDef, module: set[str]) -> Iterator[str]:
    """A parameter may be marked where the test is not: then it is run by both."""
    whole = [node for node in function.decorator_list if not isinstance(node, ast.Call)]
    marks = module | _marks(whole)
    if "long" in marks:
        yield "make test-long"
        return
    yield "make test" if marks & {"slow", "ray", "threads"} else "make check"
    if "long" in _marks(function.decorator_list) or _is_thinned(function):
        yield "make test-long"


def _is_thinned(function: ast.FunctionDef) -> bool:
    """Some of its parameters are marked `long` by `tests.products.thinned`."""
    names = (each.id for node in function.decorator_list for each in ast.walk(node) if isinstance(each, ast.Name))
    return "thinned" in names


def test_a_named_test_exists_and_is_run_by_its_command() -> None:
    with never_collected():
        assert [(test, command) for _, test, command in claims() if command not in run_by(test)] == []


def test_a_claim_is_one_line_of_at_most_120_characters() -> None:
    assert claims()
    assert [claim for claim, _, _ in claims() if len(claim) > 120] == []


def test_no_claim_stands_twice() -> None:
    told = [claim for claim, _, _ in claims()]
    assert len(told) == len(set(told))
