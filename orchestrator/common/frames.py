"""Tells whose code a line of a traceback is."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

_OWN = Path(__file__).resolve().parents[1]
_LIBRARIES = (f"{sysconfig.get_path('stdlib')}{os.sep}", "<")  # how Python's files begin, and code that is in no file


def is_users(frame: traceback.FrameSummary) -> bool:
    """Whether it is neither ours, nor Python's, nor an installed package's."""
    return not (is_own(frame) or "-packages" in frame.filename or frame.filename.startswith(_LIBRARIES))


def is_own(frame: traceback.FrameSummary) -> bool:
    """Whether it is of this package."""
    return _OWN in Path(frame.filename).resolve().parents
