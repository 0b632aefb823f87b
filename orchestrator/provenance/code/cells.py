"""Definitions of a notebook's cells, or of a script that runs, as a module that others can import.

The module has the smallest set of statements that the wanted names need, and not all cells up to them: cells also load data,
draw and launch runs, which every worker that imports the module would do again. A statement is taken if it is a definition, an
import, or an assignment of a type. A value is written as it is now, if it is plain data. Any other value was computed in a
cell, and could come out otherwise when it is computed again: it is refused, by its name.

It is a function of the sources and of what the names stand for at present: nothing is executed, and no file is written. A
definition that is not what its name stands for any more, since its cell was edited and not executed, is passed over.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import inspect
import itertools
import symtable
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from orchestrator.errors import Coded, ConfigurationError, coded
from orchestrator.provenance.code.marks import Mark, functions_of, mark, marks

MAIN = "__main__"
_LONGEST = 10_000  # characters of a value that is written
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_OF_NOTEBOOKS = ("display", "get_ipython", "exit", "quit", "In", "Out")
_BUILTINS = {*dir(builtins)} - {*_OF_NOTEBOOKS}
_GENERATED = ("<string>", "<attrs")  # files of methods that a decorator has written
_REMEDY = (
    "compute it in what uses it, hand it over by pipeline.args, or put it into a module of its own, which is imported"
)
_ANNOTATIONS = "annotations"
_DEFERRING = f"from __future__ import {_ANNOTATIONS}\n"
_Binding = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
_ALIASES = (types.GenericAlias, types.UnionType)


@dataclass(frozen=True)
class Statement:
    """One that binds names, at the top of a cell."""

    place: tuple[int, int]  # cell and line
    node: _Binding
    text: str
    codes: frozenset[Mark]  # of the functions in it


@dataclass(frozen=True)
class Taken:
    """A part of the module."""

    name: str
    text: str
    place: tuple[int, int]  # where it stood; imports and values come first
    first: frozenset[str]  # names that have to be bound before it


class Refused(Exception):
    """A definition of a notebook that cannot be imported by others. sentence: what is wrong, without who uses it."""

    def __init__(self, sentence: Coded) -> None:
        super().__init__(sentence)
        self.sentence = sentence


def module_of(names: Sequence[str], cells: Sequence[str], namespace: Mapping[str, Any], title: str) -> str:
    """The text of a module with these names. cells: sources, in the order of their execution; namespace: what the names stand
    for; title: its first line.

    Raises ConfigurationError with every name that has no source.
    """
    found = _Closure(cells, namespace)
    for name in names:
        found.take(name, None)
    if found.problems:
        raise ConfigurationError(found.problems, _REMEDY)
    head = [f'"""{title}"""', ""]
    if found.defers_annotations:
        head.append(_DEFERRING)
    parts = _in_order(found.taken)
    imports = [each.text for each in parts if each.place < (0, 0)]
    others = [each.text for each in parts if each.place >= (0, 0)]
    return "\n".join([*head, *dict.fromkeys(imports), *(f"\n\n{text}" for text in others)]).rstrip("\n") + "\n"


class _Closure:
    """The parts that were taken so far, and what was refused."""

    def __init__(self, cells: Sequence[str], namespace: Mapping[str, Any]) -> None:
        trees = list(_trees(cells))
        self.defers_annotations = any(_defers(tree) for _, _, tree in trees)
        self._imports = [each for _, _, tree in trees for each in _imports_of(tree)]
        self._statements = list(self._read(trees))
        self._namespace = namespace
        self.taken: dict[str, Taken] = {}
        self.problems: list[Coded] = []
        self._met: set[str] = set()

    def take(self, name: str, user: str | None) -> None:
        """With all that it needs. user: the definition that needs it."""
        if name in self._met or name in _BUILTINS or _is_dunder(name):
            return
        self._met.add(name)
        try:
            taken, needed = self._part(name)
        except Refused as refused:
            sentence = f"{name}: {refused.sentence}" + ("" if user is None else f"; {user} uses it")
            self.problems.append(coded(refused.sentence.code, sentence))
            return
        self.taken[name] = taken
        for each in needed:
            self.take(each, name)

    def _part(self, name: str) -> tuple[Taken, list[str]]:
        """The part for a name, and the names that it needs. Raises Refused."""
        if name in _OF_NOTEBOOKS:
            raise Refused(coded("cells.of-notebooks", "it exists in notebooks only, and not where workers run"))
        if name not in self._namespace:
            raise Refused(coded("cells.undefined", "no cell that was executed has defined it"))
        value = self._namespace[name]
        if (text := self._import(name, value)) is not None:
            return Taken(name, text, (-2, 0), frozenset()), []
        if (other := self._other_name(name, value)) is not None:
            return Taken(name, f"{name} = {other}", (sys.maxsize, 0), frozenset([other])), [other]
        if (written := _written(value)) is not None:
            module, text = written
            return Taken(name, f"{module and f'import {module}'}\n{name} = {text}".lstrip(), (0, -1), frozenset()), []
        statement = self._statement(name, value)
        first, later = _needed(_DEFERRING * self.defers_annotations + statement.text)
        return Taken(name, statement.text, statement.place, first - {name}), sorted(first | later)

    def _import(self, name: str, value: Any) -> str | None:
        """The statements that import it, None where it is no import: those of the cells, or else by what it is."""
        found = [each for each in self._imports if each.binds == name and each.gives(value)]
        if found:
            return "\n".join(dict.fromkeys(each.text for each in found if each.is_plain or each is found[-1]))
        if isinstance(value, types.ModuleType):
            return f"import {value.__name__}" + ("" if value.__name__ == name else f" as {name}")
        home, own = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if not isinstance(home, str) or not isinstance(own, str) or home == MAIN:
            return None
        if getattr(sys.modules.get(home), own, None) is not value:
            return None
        return f"from {home} import {own}" + ("" if own == name else f" as {name}")

    def _other_name(self, name: str, value: Any) -> str | None:
        """The name of a definition that this one is another name of."""
        own = getattr(value, "__name__", None) if _is_definition(value) else None
        return own if isinstance(own, str) and own != name and self._namespace.get(own) is value else None

    def _statement(self, name: str, value: Any) -> Statement:
        """Raises Refused."""
        found = [each for each in self._statements if name in _bound(each.node)]
        if not _is_definition(value):
            decorated = found and getattr(found[-1].node, "decorator_list", [])
            if found and (decorated or isinstance(value, _ALIASES) or type(value).__module__ == typing.__name__):
                return found[-1]
            what = type(value).__name__
            raise Refused(coded("cells.computed", f"its value, of {what}, was computed in a cell, and has no source"))
        if not found:
            raise Refused(coded("cells.no-source", "no cell has its definition as a statement of its own"))
        if isinstance(found[-1].node, ast.Assign) and isinstance(found[-1].node.value, ast.Name):
            own = found[-1].node.value.id
            raise Refused(coded("cells.earlier", f"it is an earlier {own}; give one of the two another name"))
        live = _codes_of(value)
        fitting = [each for each in found if _is_decorated(each.node) or live <= each.codes]
        if not fitting:
            raise Refused(
                coded("cells.changed", "it is not what its definition made of it: a part of it was replaced afterwards")
            )
        self._require_bases(name, value, fitting[-1])
        return fitting[-1]

    def _require_bases(self, name: str, value: Any, statement: Statement) -> None:
        """Raises Refused where a base was defined anew since, or has the name of the class."""
        if not isinstance(statement.node, ast.ClassDef) or not isinstance(value, type):
            return
        for base in statement.node.bases:
            if not isinstance(base, ast.Name):
                continue
            if base.id == name:
                raise Refused(
                    coded("cells.same-name", f"its base is an earlier {name}; give one of the two another name")
                )
            present = self._namespace.get(base.id)
            if isinstance(present, type) and present not in value.__mro__ and present.__module__ == MAIN:
                raise Refused(
                    coded(
                        "cells.older-base",
                        f"its base {base.id} was defined anew since; execute the cell of {value.__name__}",
                    )
                )

    def _read(self, trees: Iterable[tuple[int, str, ast.Module]]) -> Iterator[Statement]:
        flags = __future__.annotations.compiler_flag if self.defers_annotations else 0
        flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        for number, text, tree in trees:
            whole = [*marks(compile(tree, "cells", "exec", flags=flags, dont_inherit=True))]
            for node in tree.body:
                if isinstance(node, _Binding):
                    part = ast.Module([node], [])
                    # A notebook compiles statement by statement, a script whole, which may give other code.
                    codes = {*marks(compile(part, "cells", "exec", flags=flags, dont_inherit=True))}
                    codes |= {each for each in whole if _first_line(node) <= each[1] <= (node.end_lineno or 0)}
                    yield Statement((number, node.lineno), node, _source(node, text), frozenset(codes))


@dataclass(frozen=True)
class _Import:
    """One name that an import binds."""

    binds: str
    text: str
    module: str
    attribute: str | None  # of the module; None: the module itself
    is_plain: bool  # `import a.b`, which binds a, and of which there may be several

    def gives(self, value: Any) -> bool:
        module = sys.modules.get(self.module.partition(".")[0] if self.is_plain else self.module)
        if self.attribute is None:
            return module is value
        below = sys.modules.get(f"{self.module}.{self.attribute}")
        return module is not None and (getattr(module, self.attribute, self) is value or below is value)


def _trees(cells: Sequence[str]) -> Iterator[tuple[int, str, ast.Module]]:
    """A cell that is not Python, such as one in the middle of being written, has defined nothing."""
    for number, text in enumerate(cells):
        try:
            yield number, text, ast.parse(text)
        except (SyntaxError, ValueError):
            continue


def _defers(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == __future__.__name__
        and any(alias.name == _ANNOTATIONS for alias in node.names)
        for node in tree.body
    )


def _imports_of(tree: ast.AST) -> Iterator[_Import]:
    """Those outside of functions and classes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                text = f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
                binds = alias.asname or alias.name.partition(".")[0]
                yield _Import(binds, text, alias.name, None, is_plain=alias.asname is None)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level and node.module != "__future__":
            for alias in node.names:
                text = f"from {node.module} import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
                yield _Import(alias.asname or alias.name, text, node.module, alias.name, is_plain=False)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _imports_of(node)


def _bound(node: _Binding) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {each.id for each in targets if isinstance(each, ast.Name)}


def _first_line(node: _Binding) -> int:
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return node.lineno
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _source(node: _Binding, text: str) -> str:
    """The lines of a statement, with its comments; what shares a line with others is written anew."""
    lines = text.splitlines()[_first_line(node) - 1 : node.end_lineno]
    with contextlib.suppress(SyntaxError):
        if ast.dump(ast.parse("\n".join(lines))) == ast.dump(ast.Module([node], [])):
            return "\n".join(lines)
    return ast.unparse(node)


def _is_decorated(node: _Binding) -> bool:
    """A decorator may have made anything of it, which the statement makes again."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and bool(node.decorator_list)


def _codes_of(value: Any) -> set[Mark]:
    """Those of a function, or of the methods that stand in a class of the cells."""
    if not isinstance(value, type):
        return {mark(inspect.unwrap(value).__code__)}
    inside = (function for each in vars(value).values() for function in functions_of(each))
    return {
        mark(each.__code__)
        for each in inside
        if each.__module__ == MAIN and not each.__code__.co_filename.startswith(_GENERATED)
    }


def _is_definition(value: Any) -> bool:
    return isinstance(value, type | types.FunctionType) and getattr(value, "__module__", None) == MAIN


def _written(value: Any) -> tuple[str, str] | None:
    """The module that a value needs, "" for none, and its text; None where no text is it."""
    if isinstance(value, PurePath):
        return "pathlib", f"pathlib.Path({str(value)!r})"
    if type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device"):
        return "torch", f"torch.{repr(value).removeprefix('torch.')}"
    return ("", _text(value)) if _is_plain(value) else None


def _is_plain(value: Any) -> bool:
    """Whether the text of it is it: numbers, text, and collections of them."""
    try:
        if not _has_plain_types(value):
            return False
        text = _text(value)
        return len(text) <= _LONGEST and bool(ast.literal_eval(text) == value)
    except (ValueError, SyntaxError, RecursionError):  # nan, what is empty, and a list in itself
        return False


def _text(value: Any) -> str:
    """As `repr` writes it, but for the order of a set, which each process chooses anew: the module would be another one, and
    could go through its set in another order."""
    if type(value) is set and value:
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    if type(value) is dict:
        return f"{{{', '.join(f'{_text(key)}: {_text(each)}' for key, each in value.items())}}}"
    if type(value) is list:
        return f"[{', '.join(map(_text, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(_text, value))}{',' if len(value) == 1 else ''})"
    return repr(value)


def _has_plain_types(value: Any) -> bool:
    if type(value) is dict:
        return all(map(_has_plain_types, itertools.chain(value.keys(), value.values())))
    if type(value) in (tuple, list, set):
        return all(map(_has_plain_types, value))
    return type(value) in _PLAIN


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _needed(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """The global names that a statement needs when it is executed, and those that its functions need when they are called."""
    first: set[str] = set()
    later: set[str] = set()

    def look(table: symtable.SymbolTable, names: set[str]) -> None:
        is_top = table.get_type() == "module"
        names = later if table.get_type() == "function" and table.get_name() not in _AT_ONCE else names
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (is_top or symbol.is_global()):
                names.add(symbol.get_name())
        for below in table.get_children():
            look(below, names)

    look(symtable.symtable(text, "cells", "exec"), first)
    return frozenset(first), frozenset(later - first)


_AT_ONCE = ("listcomp", "setcomp", "dictcomp", "genexpr")  # tables of what is executed where it stands


def _in_order(taken: Mapping[str, Taken]) -> list[Taken]:
    """Imports, values, then definitions as they were executed, each after what it needs at once."""
    order: list[Taken] = []
    begun: set[str] = set()

    def put(name: str) -> None:
        if name in begun or name not in taken:
            return
        begun.add(name)
        for each in sorted(taken[name].first):
            put(each)
        order.append(taken[name])

    for each in sorted(taken.values(), key=lambda part: (part.place, part.name)):
        put(each.name)
    return order
