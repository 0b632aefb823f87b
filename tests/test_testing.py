"""docs/testing.md names tests that exist, each under the command that runs it."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent
COMMANDS = ("make check", "make test", "make test-long")


def named() -> Iterator[tuple[str, str]]:
    """(test, command) of every cell of the table of claims."""
    page = (TESTS.parent / "docs" / "testing.md").read_text()
    header, _, *rows = page[page.index("| claim |") :].strip().splitlines()
    assert tuple(re.findall(r"`(.*?)`", header)) == COMMANDS
    for row in rows:
        cells = row.split("|")[2:-1]
        assert len(cells) == len(COMMANDS), row
        assert any(cell.strip() for cell in cells), row
        for command, cell in zip(COMMANDS, cells, strict=True):
            yield from ((test, command) for test in re.findall(r"`(.*?)`", cell))


def run_by(test: str) -> set[str]:
    """The commands that run a test, or some of a file: by the marks that pyproject.toml describes."""
    file, _, name = test.partition("::")
    tree = _parsed(file)
    module = _marks(node for node in tree.body if isinstance(node, ast.Assign) and _is_marks(node))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    found = [function for function in functions if name in ("", function.name)]
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
    yield "make test" if marks & {"slow", "ray"} else "make check"
    if "long" in _marks(function.decorator_list) or _is_thinned(function):
        yield "make test-long"


def _is_thinned(function: ast.FunctionDef) -> bool:
    """Some of its parameters are marked `long` by `tests.products.thinned`."""
    names = (each.id for node in function.decorator_list for each in ast.walk(node) if isinstance(each, ast.Name))
    return "thinned" in names


def test_a_named_test_exists_and_is_run_by_its_command() -> None:
    assert [(test, command) for test, command in sorted(set(named())) if command not in run_by(test)] == []
