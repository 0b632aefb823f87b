"""Which functions a text defines, and whether a module that was imported is what its file says by now.

A process that lives long, such as a notebook's, keeps what it has imported, though the file is edited; workers and the record
have the file. Functions are compared by their code: values at the top of a module are not looked at.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from orchestrator.common.distributions import SITES
from orchestrator.common.frames import file_of

Mark = tuple[Any, ...]
_Cached = type(functools.cache(len))


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
    """Whether the functions of an imported module are those of this text."""
    try:
        known = {*marks(compile(text, "module", "exec", dont_inherit=True))}
    except (SyntaxError, ValueError):
        return False
    return all(mark(each.__code__) in known for each in _functions(module))


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """Those that were read from its file."""
    for value in list(vars(module).values()):
        inside = list(vars(value).values()) if isinstance(value, type) and value.__module__ == module.__name__ else []
        for each in (value, *inside):
            for function in functions_of(each):
                if function.__code__.co_filename == module.__file__:
                    yield function


def forget_edited(project: Path) -> list[str]:
    """Have the modules of a project be imported anew, if one of them was edited since; the names of those that were."""
    own = {name: module for name, module in list(sys.modules.items()) if _is_of(module, project)}
    edited = [name for name, module in own.items() if not is_current(module, Path(str(module.__file__)).read_bytes())]
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
