"""The text and trees of Python files, for tests that look at all of them: each file is read, parsed and walked once in a
process."""

from __future__ import annotations

import ast
import functools
import gc
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "orchestrator"
FILES = sorted(PACKAGE.rglob("*.py"))
_FILES = frozenset(FILES)


class Source:
    """One text, with its tree."""

    def __init__(self, text: str) -> None:
        self.text = text

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @functools.cached_property
    def nodes(self) -> dict[type[ast.AST], list[Any]]:
        """The nodes of its tree, by their kind; each kind in the order of `ast.walk`."""
        found: dict[type[ast.AST], list[Any]] = defaultdict(list)
        with never_collected():
            for node in ast.walk(self.tree):
                found[type(node)].append(node)
        return found

    def of(self, *kinds: type[ast.AST]) -> Iterator[Any]:
        """The nodes of these kinds, one kind after the other."""
        return (node for kind in kinds for node in self.nodes.get(kind, ()))


@functools.cache
def source(file: Path) -> Source:
    return package()[file] if file in _FILES else Source(file.read_text(encoding="utf-8"))


@functools.cache
def package() -> dict[Path, Source]:
    """The sources of all modules, in the order of their names; a test that needs the trees of few has only those parsed."""
    return {file: Source(file.read_text(encoding="utf-8")) for file in FILES}


@contextmanager
def never_collected() -> Iterator[None]:
    """For what makes many objects that stay: to look for garbage among them again and again takes twice as long as to make
    them."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
