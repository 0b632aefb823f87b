"""Docstrings and comments are plain: no sentence of more than 40 words, and none that opens with a relative clause.

A reader has to read "Who has done so many steps goes on after so many others" twice, and "The step to jump to after so many
steps" once. `python -m tests.test_prose [FOLDER]` prints the sentences that are turned or long, with their places.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.sources import ROOT, Source, source

# Folders and modules that are held; a module without its suffix.
# The largest place is read by `make test` alone.
SLOW = pytest.mark.slow
HELD = (
    *(
        "orchestrator/adapters",
        "orchestrator/api",
        "orchestrator/errors",
        "orchestrator/pipeline",
        "orchestrator/moved",
    ),
    *(
        "orchestrator/checkpoint",
        "orchestrator/cli",
        "orchestrator/cluster",
        "orchestrator/comm",
        "orchestrator/common",
        "orchestrator/config",
    ),
    *(
        "orchestrator/controller",
        "orchestrator/data",
        "orchestrator/driver",
        "orchestrator/experiments",
        "orchestrator/numerics",
        "orchestrator/optim",
    ),
    *("orchestrator/provenance", "orchestrator/records", "orchestrator/worker"),
    *("benchmarks", "campaign", "pipelines", "tests"),
)
BEFORE = ROOT / "tests" / "before"  # written by an earlier version, and kept as it was
MOST_WORDS = 40
OPENINGS = {"Who", "Whom", "Whose", "Whoever", "Whichever", "Whatever", "Of", "What", "Where", "That"}

# Entries for parameters (`name: what it is`) are sentences of their own.
_BETWEEN = re.compile(r"(?<=[.!?])[\"')`*]*\s+(?=[A-Z`\"'(*\[])|(?<=[.;])\s+(?=\w+(?:, \w+)*: )")
_ITEM = re.compile(r"\s*([-*]|\d+\.|\||>>>) ?")
_TABLE = re.compile(r"\S {3,}\S")
# An opening, or two lines with a comment each: one holds no 40 words.
_SUSPECT = re.compile(rf"#[^\n]*\b(?:{'|'.join(sorted(OPENINGS))})\b|#[^\n]*\n[^\n#]*#")
_DIRECTIVE = re.compile(r"#:? *(noqa|type:|pragma|mypy:|ruff:|fmt:|!)")


class Found(NamedTuple):
    """A sentence that has to be rewritten."""

    line: int
    why: str  # "turned" or "long"
    sentence: str


def faults(read: Source) -> Iterator[Found]:
    """The sentences of a file that are turned or long, in the order of its lines."""
    for line, text in sorted([*_docstrings(read), *_comments(read.text)]):
        for sentence in sentences(text):
            words = sentence.split()
            opening = re.sub(r"\W", "", words[0])
            if opening in OPENINGS and not sentence.endswith("?"):
                yield Found(line, "turned", sentence)
            if len(words) > MOST_WORDS:
                yield Found(line, "long", sentence)


def sentences(text: str) -> Iterator[str]:
    """Those of running text: a line of a table, a formula or an item of a list is one by itself."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        for run in _runs(paragraph.split("\n")):
            yield from filter(str.split, _BETWEEN.split(" ".join(run.split())))


def _runs(lines: list[str]) -> Iterator[str]:
    """Lines of a paragraph that run on, joined: what is indented, or parted by spaces, stands alone."""
    run: list[str] = []
    for line in lines:
        alone = line.startswith("  ") or _TABLE.search(line) is not None
        if alone or _ITEM.match(line):
            yield "\n".join(run)
            run = []
        run.append(line)
        if alone:
            yield line
            run = []
    yield "\n".join(run)


def _docstrings(read: Source) -> Iterator[tuple[int, str]]:
    for node in read.of(ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef):
        text = ast.get_docstring(node)
        if text:
            yield node.body[0].lineno, text


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Each comment, lines of one that run on joined. Files without a comment that could be at fault are not read by tokens."""
    if not _SUSPECT.search(text):
        return
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = [token for token in tokens if token.type == tokenize.COMMENT and not _DIRECTIVE.match(token.string)]
    for _, lines in groupby(enumerate(found), lambda each: (each[1].start[0] - each[0], each[1].start[1])):
        several = [token for _, token in lines]
        yield several[0].start[0], "\n".join(re.sub(r"^#:? ?", "", token.string) for token in several)


def files(place: str) -> list[Path]:
    """The modules of a folder, or the one module of that name."""
    folder = ROOT / place
    if not folder.is_dir():
        return [folder.with_suffix(".py")]
    return sorted(file for file in folder.rglob("*.py") if not file.is_relative_to(BEFORE))


@pytest.mark.parametrize("place", [pytest.param(place, marks=SLOW if place == "tests" else ()) for place in HELD])
def test_sentences_are_plain(place: str) -> None:
    """At most 40 words, subject first."""
    found = [
        f"{file.relative_to(ROOT)}:{each.line}: {each.why}: {each.sentence}"
        for file in files(place)
        for each in faults(source(file))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('"""Who has done so goes on."""', ["turned"]),
        ('"""It goes on.\n\nOf each, whether it does."""', ["turned"]),
        ('"""It goes on. `Where` is a name."""', ["turned"]),
        ('"""What is wrong?"""', []),
        (f'"""It is {"very " * 40}long."""', ["long"]),
        (f'"""It is.\n\n    formula   {"x " * 30}\n    another   {"y " * 30}\n"""', []),
        (f"a = 1  # it is {'very ' * 20}\n# long {'so ' * 25}\n", []),
        (f"# it is {'very ' * 20}\n# long {'so ' * 25}\na = 1\n", ["long"]),
        ("a = 1  # noqa: E501\n", []),
    ],
)
def test_what_has_to_be_rewritten_is_found(text: str, why: list[str]) -> None:
    """In docstrings and in comments, and tables are none."""
    assert [each.why for each in faults(Source(text))] == why


if __name__ == "__main__":
    for place in sys.argv[1:] or ["orchestrator", "tests", "benchmarks", "campaign", "pipelines"]:
        for file in files(place.removesuffix(".py")):
            for each in faults(source(file)):
                print(f"@@ {file.relative_to(ROOT)}\n- {each.sentence}\n+   {each.why}, line {each.line}")
