"""Tells whose code a line of a traceback is, and whose a module."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import traceback
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.common.distributions import is_installed

_OWN = Path(__file__).resolve().parents[1]
_LIBRARIES = (f"{sysconfig.get_path('stdlib')}{os.sep}", "<")  # how Python's files begin, and code that is in no file
_adopted: set[str] = set()


def is_users(frame: traceback.FrameSummary) -> bool:
    """Whether it is neither ours, nor Python's, nor an installed package's."""
    return not (is_own(frame) or frame.filename.startswith(_LIBRARIES) or is_installed(frame.filename))


def is_own(frame: traceback.FrameSummary) -> bool:
    """Whether it is of this package."""
    return _OWN in Path(frame.filename).resolve().parents


def file_of(module: object) -> Any:
    """The file of what `sys.modules` holds, as far as it has one itself: a lazy module is imported by a question for anything
    that it lacks, which warns, takes time, or fails."""
    return getattr(module, "__dict__", {}).get("__file__")


@functools.cache
def is_users_module(name: str | None) -> bool:
    """Whether a module of this name is part of a project: not of a package, of Python, or of orchestrator."""
    file = file_of(sys.modules.get(name or ""))
    return (
        not is_base_module(name or "") and file is not None and (_top(name or "") in _adopted or not is_installed(file))
    )


def adopt(name: str) -> None:
    """From now on count the package of this module as the user's, though pip may have installed it, as in an image."""
    _adopted.add(_top(name))
    is_users_module.cache_clear()


def _top(name: str) -> str:
    return name.partition(".")[0]


def imported_modules(names: Iterable[str]) -> dict[str, types.ModuleType]:
    """Those of these modules that are the user's, and all of the user's that they import, and those import."""
    theirs = {name: each for name, each in list(sys.modules.items()) if is_users_module(name)}
    found: dict[str, types.ModuleType] = {}
    new = theirs.keys() & set(names)
    while new:
        found |= {name: theirs[name] for name in new}
        new = {each for name in new for each in _imported(theirs[name])} & theirs.keys() - found.keys()
    return found


def _imported(module: types.ModuleType) -> Iterator[str]:
    """The names of modules that it refers to, whose code it refers to, or that its functions may import."""
    for value in list(vars(module).values()):
        if isinstance(value, types.ModuleType):
            yield value.__name__
        elif isinstance(value, (type, types.FunctionType)):
            yield value.__module__
            own = [value, *vars(value).values()] if value.__module__ == module.__name__ else ()
            for each in own:
                if isinstance(each, types.FunctionType):
                    yield from _named(each.__code__)


def _named(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _named(part)


def variables_of(modules: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The globals of these modules by their places, but for what Python sets."""
    found = ((f"{name}.{key}", key, value) for name, each in modules.items() for key, value in list(each.items()))
    return {place: value for place, key, value in found if not key.startswith("__")}


def is_base_module(name: str) -> bool:
    """Whether a module of this name is of Python or of orchestrator."""
    top = _top(name)
    return top in sys.stdlib_module_names or top == "orchestrator"
