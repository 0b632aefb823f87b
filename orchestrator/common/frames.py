"""Tells whose code a line of a traceback is, and whose a module."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import traceback
from pathlib import Path

_OWN = Path(__file__).resolve().parents[1]
_PACKAGES = "-packages"  # in the file of an installed package
_LIBRARIES = (f"{sysconfig.get_path('stdlib')}{os.sep}", "<")  # how Python's files begin, and code that is in no file


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
    return not is_base_module(name or "") and file is not None and _PACKAGES not in file


def is_base_module(name: str) -> bool:
    """Whether a module of this name is of Python or of orchestrator."""
    top = name.partition(".")[0]
    return top in sys.stdlib_module_names or top == "orchestrator"
