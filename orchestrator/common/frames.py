"""Tells whose code a line of a traceback is, and whose a module."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import traceback
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_OWN = Path(__file__).resolve().parents[1]
_PACKAGES = "-packages"  # in the file of an installed package
_LIBRARIES = (f"{sysconfig.get_path('stdlib')}{os.sep}", "<")  # how Python's files begin, and code that is in no file
_adopted: set[str] = set()


def is_users(frame: traceback.FrameSummary) -> bool:
    """Whether it is neither ours, nor Python's, nor an installed package's."""
    return not (is_own(frame) or _PACKAGES in frame.filename or frame.filename.startswith(_LIBRARIES))


def is_own(frame: traceback.FrameSummary) -> bool:
    """Whether it is of this package."""
    return _OWN in Path(frame.filename).resolve().parents


@functools.cache
def is_users_module(name: str | None) -> bool:
    """Whether a module of this name is part of a project: not of a package, of Python, or of orchestrator."""
    file = getattr(sys.modules.get(name or ""), "__file__", None)
    return (
        not is_base_module(name or "") and file is not None and (_PACKAGES not in file or _top(name or "") in _adopted)
    )


def adopt(name: str) -> None:
    """From now on count the package of this module as the user's, though pip may have installed it, as in an image."""
    _adopted.add(_top(name))
    is_users_module.cache_clear()


def _top(name: str) -> str:
    return name.partition(".")[0]


def modules_of_project(names: Iterable[str]) -> dict[str, types.ModuleType]:
    """The modules of the user's in the packages of these; and all others in the folders where these lie, and what they import
    lies. A folder into which pip has installed packages gives no other ones."""
    theirs = {name: each for name, each in list(sys.modules.items()) if is_users_module(name)}
    packages = {_top(name) for name in names if name in theirs}
    found = {name: each for name, each in theirs.items() if _top(name) in packages}
    roots: set[Path] = set()
    while new := {_root(name) for name in _imported(found) if name in theirs} - roots:
        roots |= new
        beside = tuple(f"{root}{os.sep}" for root in new if not any(root.glob("*.dist-info")))
        found |= {name: each for name, each in theirs.items() if str(each.__file__).startswith(beside)}
    return found


def _imported(modules: Mapping[str, types.ModuleType]) -> Iterable[str]:
    """The names of these modules, and of those whose code they refer to."""
    for name, module in modules.items():
        yield name
        for value in list(vars(module).values()):
            if isinstance(value, types.ModuleType):
                yield value.__name__
            elif isinstance(value, (type, types.FunctionType)):
                yield value.__module__


def _root(name: str) -> Path:
    """The folder in which a module's package lies, or the module."""
    file = Path(str(sys.modules[name].__file__))
    folders = file.parent.parents if file.stem == "__init__" else file.parents
    return folders[min(name.count("."), len(folders) - 1)]


def variables_of(modules: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The globals of these modules by their places, but for what Python sets."""
    found = ((f"{name}.{key}", key, value) for name, each in modules.items() for key, value in list(each.items()))
    return {place: value for place, key, value in found if not key.startswith("__")}


def is_base_module(name: str) -> bool:
    """Whether a module of this name is of Python or of orchestrator."""
    top = _top(name)
    return top in sys.stdlib_module_names or top == "orchestrator"
