"""Large dataclasses, named tuples and constructors say of each field, or parameter, what it is: where it stands, a line each.

A line is a comment at the end of the field's line or in the line above it; a setting has its sentence in its metadata, and
an option of an optimizer in its annotation. The docstring above repeats none of them. `python -m tests.test_fields` prints what
lacks a line in every room.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.sources import PACKAGE, Source, source

# Rooms of the house that are held; a room is a folder or a module beside them.
ROOMS = {
    *("adapters", "api", "comm", "common", "config", "controller", "data", "errors", "numerics", "optim", "pipeline"),
    *("driver", "cli", "experiments"),
    *("worker", "cluster", "provenance", "checkpoint", "records"),
}
FIELDS = 6  # a class of so many is large
PARAMETERS = 5  # and so is a constructor, beside self
DIRECTIVE = re.compile(r"(noqa|type:|pragma|mypy:|ruff:|fmt:)")


class Lines(NamedTuple):
    """The lines of one field or parameter."""

    name: str
    first: int
    last: int
    is_described: bool = False


class Large(NamedTuple):
    """A class or a constructor whose fields or parameters need lines."""

    name: str
    docstrings: tuple[str, ...]
    entries: list[Lines]


def missing(read: Source) -> list[tuple[int, str]]:
    """(line, what) of everything that lacks a line of its own, and of what the docstring above says once more."""
    all_large = list(_large(read))
    if not all_large:
        return []
    trailing, alone = _comments(read.text)
    found: list[tuple[int, str]] = []
    for large in all_large:
        starts = [entry.first for entry in large.entries]
        for entry in large.entries:
            lines = range(entry.first, entry.last + 1)
            shares = starts.count(entry.first) > 1
            told = any(line in trailing for line in lines) or entry.first - 1 in alone
            if not entry.is_described and (shares or not told):
                found.append((entry.first, f"{large.name}.{entry.name}"))
            listed = re.compile(rf"(?:^|[.;:(] |, )`?{entry.name}`?(?:, `?\w+`?| and `?\w+`?)*: ")
            if any(listed.search(" ".join(docstring.split())) for docstring in large.docstrings):
                found.append((entry.first, f"{large.name}.{entry.name} is told of in the docstring as well"))
    return found


def _comments(text: str) -> tuple[set[int], set[int]]:
    """The lines that end with a comment, and those that are one."""
    trailing: set[int] = set()
    alone: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not DIRECTIVE.match(token.string.lstrip("# ")):
            (trailing if token.line[: token.start[1]].strip() else alone).add(token.start[0])
    return trailing, alone


def _large(read: Source) -> Iterator[Large]:
    for node in read.of(ast.ClassDef):
        fields = list(_fields(node)) if _is_record(node) else []
        docstring = ast.get_docstring(node) or ""
        if len(fields) >= FIELDS:
            yield Large(node.name, (docstring,), fields)
        for function in node.body:
            if isinstance(function, ast.FunctionDef) and _is_constructor(function):
                parameters = list(_parameters(function))
                if len(parameters) >= PARAMETERS:
                    docstrings = (docstring, ast.get_docstring(function) or "")
                    yield Large(f"{node.name}.{function.name}", docstrings, parameters)


def _is_record(node: ast.ClassDef) -> bool:
    marks = [ast.unparse(each.func if isinstance(each, ast.Call) else each) for each in node.decorator_list]
    names = {mark.rpartition(".")[2] for mark in [*marks, *map(ast.unparse, node.bases)]}
    return bool(names & {"dataclass", "NamedTuple"})


def _fields(node: ast.ClassDef) -> Iterator[Lines]:
    for each in node.body:
        if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
            continue
        if re.search(r"\b(ClassVar|KW_ONLY)\b", ast.unparse(each.annotation)):
            continue
        words = each.value.keywords if isinstance(each.value, ast.Call) else []
        has_metadata = any(word.arg == "metadata" for word in words)
        yield Lines(each.target.id, each.lineno, each.end_lineno or each.lineno, has_metadata)


def _is_constructor(function: ast.FunctionDef) -> bool:
    is_classmethod = "classmethod" in map(ast.unparse, function.decorator_list)
    return function.name in ("__init__", "__new__") or is_classmethod


def _parameters(function: ast.FunctionDef) -> Iterator[Lines]:
    """Without self, or cls."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults))
    pairs = [*zip(positional, [*defaults, *given.defaults], strict=True)][1:]
    pairs += zip(given.kwonlyargs, given.kw_defaults, strict=True)
    pairs += [(each, None) for each in (given.vararg, given.kwarg) if each is not None]
    for parameter, default in pairs:
        end = parameter.end_lineno if default is None else default.end_lineno
        described = any(word.arg == "description" for word in ast.walk(parameter) if isinstance(word, ast.keyword))
        yield Lines(parameter.arg, parameter.lineno, end or parameter.lineno, described)


def files(room: str) -> list[Path]:
    return sorted([*(PACKAGE / room).rglob("*.py"), *PACKAGE.glob(f"{room}.py")])


def lacking(room: str) -> list[str]:
    """file:line Class.field"""
    return [
        f"{file.relative_to(PACKAGE.parent)}:{line} {what}"
        for file in files(room)
        for line, what in missing(source(file))
    ]


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_each_field_and_parameter_has_its_line(room: str) -> None:
    assert files(room), f"there is no room {room}"
    found = lacking(room)
    assert not found, "these have no line of their own:\n" + "\n".join(found)


SOURCE = '''
@dataclass(frozen=True)
class Whole:
    """Two words. last, first: told above; the rest below."""

    first: int  # of a step
    # too long for its line
    second: int
    third: int = field(default=1, metadata=result("told to the user"))
    fourth: int = field(
        default=1
    )  # at the end of several lines
    fifth: ClassVar[int] = 1
    sixth: int
    last: int = 1  # noqa: A001

    def __init__(
        self,
        one: int,  # told
        two: int, three: int,  # told of one of them
        # told above
        four: int = 4,
        *,
        five: Callable[[int], int] = (
            abs
        ),
        **six: int,
    ) -> None: ...

    @classmethod
    def made(
        cls,
        described: Annotated[int, Field(description="told to the user")],
        one: int,  # told
        two: int,  # told
        three: int,  # told
        seven: int,
    ) -> None: ...


class Small(NamedTuple):
    one: int
    two: int
'''


def test_no_way_of_leaving_a_line_out_is_overlooked() -> None:
    assert [what for _, what in missing(Source(SOURCE))] == [
        "Whole.first is told of in the docstring as well",
        "Whole.sixth",
        "Whole.last",
        "Whole.last is told of in the docstring as well",
        *(f"Whole.__init__.{name}" for name in ("two", "three", "five", "six")),
        "Whole.made.seven",
    ]


if __name__ == "__main__":
    rooms = sorted({path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()})
    print("\n".join(line for room in rooms for line in lacking(room)))
