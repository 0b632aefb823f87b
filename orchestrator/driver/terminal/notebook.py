"""Whether this process is a notebook or another interactive Python, which outlives a run that was launched in it."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any


def shell() -> Any | None:
    """IPython's, which knows the cells; None where there is none."""
    known = sys.modules.get("IPython")
    return None if known is None else known.get_ipython()


def is_here() -> bool:
    """Whether what is printed is shown below a cell."""
    return type(shell()).__name__ == "ZMQInteractiveShell"


def has_widgets() -> bool:
    return is_here() and find_spec("ipywidgets") is not None


def is_interactive() -> bool:
    """Whether somebody types into this process, and goes on when a run has ended."""
    return shell() is not None or hasattr(sys, "ps1")
