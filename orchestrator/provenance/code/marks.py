"""Which functions a text defines, and whether a module that was imported is what its file says by now.

A process that lives long, such as a notebook's, keeps what it has imported, though the file is edited; workers and the record
have the file. Functions are compared by their code, and the text by what it was when the module was first looked at. An edit
before that which changes no function is found by the plain values that stand in the text (`holds`): a program may have set
them, so they alone are no reason to import a module anew.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from orchestrator.common.distributions import SITES
from orchestrator.common.frames import file_of

Mark = tuple[Any, ...]
_Cached = type(functools.cache(len))
_PLAIN = (bool, int, float, complex, str, bytes, tuple, type(None))
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_first: weakref.WeakKeyDictionary[ModuleType, int] = weakref.WeakKeyDictionary()  # of the texts at the first look


def marks(code: CodeType) -> Iterator[Mark]:
    """The marks of all code below a code."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield mark(each)
            yield from marks(each)


def mark(code: CodeType) -> Mark:
    """The parts that tell a function from others. Codes that are equal compare unequal once one was executed (Python 3.11)."""
    constants = tuple(map(_constant, code.co_consts))
    return code.co_name, code.co_firstlineno, code.co_code, code.co_names, code.co_varnames, constants


def _constant(value: object) -> object:
    if isinstance(value, CodeType):
        return mark(value)
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def functions_of(value: object) -> Iterator[FunctionType]:
    """The functions behind an attribute of a class or a module, without what decorators have wrapped around them."""
    found: list[Any]
    if isinstance(value, staticmethod | classmethod):
        found = [value.__func__]
    elif isinstance(value, property):
        found = [value.fget, value.fset, value.fdel]
    elif isinstance(value, functools.cached_property):
        found = [value.func]
    else:
        found = [value]
    for each in found:
        inner = inspect.unwrap(each) if isinstance(each, FunctionType | _Cached) else None
        if isinstance(inner, FunctionType):
            yield inner


def is_current(module: ModuleType, text: bytes) -> bool:
    """Whether an imported module is still what this text says, as far as its functions tell, or what the text was before."""
    try:
        code = _compiled(module, text)
    except (SyntaxError, ValueError):
        return False
    known = {*marks(code)}
    if not all(mark(each.__code__) in known for each in _functions(module)):
        return False
    found = hash(mark(code))
    return _first.setdefault(module, found) == found


def _compiled(module: ModuleType, text: bytes) -> CodeType:
    """As the loader of the module does it, which may rewrite it. Raises SyntaxError, ValueError."""
    code: CodeType = getattr(module.__loader__, "source_to_code", _as_it_stands)(text, "module")
    return code


def _as_it_stands(text: bytes, name: str) -> CodeType:
    return compile(text, name, "exec", dont_inherit=True)


def holds(module: ModuleType, text: bytes) -> bool:
    """Whether an imported module has the plain values that this text gives it and its classes, and defaults of arguments. A
    name that the text sets again somewhere is not looked at."""
    tree = ast.parse(text)
    times = Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store)
    )
    return not any(_differ(told, held) for told, held in _plain_values(tree.body, vars(module), times))


def _differ(told: ast.expr, held: object) -> bool:
    """Whether a plain value is another plain one by now. A decorator may have made anything else of it, which is no edit."""
    try:
        value = ast.literal_eval(told)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return False
    return {type(value), type(held)} <= {*_PLAIN} and repr(value) != repr(held)


def _plain_values(
    body: Sequence[ast.stmt], names: Mapping[str, Any], times: Mapping[str, int]
) -> Iterator[tuple[ast.expr, object]]:
    """The values that the text gives, each with the one that the name has."""
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for each in targets:
                if isinstance(each, ast.Name) and times[each.id] == 1 and each.id in names:
                    yield node.value, names[each.id]
        elif isinstance(node, ast.ClassDef) and isinstance(names.get(node.name), type):
            yield from _plain_values(node.body, vars(names[node.name]), times)
        elif isinstance(node, _Function):
            for function in functions_of(names.get(node.name)):
                yield from _defaults(node, function)


def _defaults(node: _Function, function: FunctionType) -> Iterator[tuple[ast.expr, object]]:
    yield from zip(node.args.defaults, function.__defaults__ or (), strict=False)
    by_name = function.__kwdefaults__ or {}
    for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        if default is not None and argument.arg in by_name:
            yield default, by_name[argument.arg]


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """Those that were read from its file."""
    for value in list(vars(module).values()):
        inside = list(vars(value).values()) if isinstance(value, type) and value.__module__ == module.__name__ else []
        for each in (value, *inside):
            for function in functions_of(each):
                if function.__code__.co_filename == module.__file__:
                    yield function


def forget_edited(project: Path) -> list[str]:
    """Have the modules of a project be imported anew, if one of them was edited since; the names of those that were. A
    module counts as not edited if its loader rewrites text and does not tell how, as pytest's does."""
    own = {name: module for name, module in list(sys.modules.items()) if _is_of(module, project)}
    told = {name: module for name, module in own.items() if hasattr(module.__loader__, "source_to_code")}
    edited = [name for name, module in told.items() if not is_current(module, Path(str(module.__file__)).read_bytes())]
    if edited:
        for name in own:
            sys.modules.pop(name, None)
    return sorted(edited)


def _is_of(module: ModuleType, project: Path) -> bool:
    name, file = getattr(module, "__name__", ""), file_of(module)
    if name in ("__main__", "__mp_main__") or name.partition(".")[0] == "orchestrator" or not isinstance(file, str):
        return False
    place = Path(file)
    inside = file.endswith(".py") and place.is_relative_to(project) and place.is_file()
    return inside and not SITES & {*place.parts} and ".orchestrator" not in place.parts
