"""Sets up the process of a command before anything else is imported: its arguments as UTF-8, and warnings as libraries bear
them."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings

_EASED = (
    "note: warnings that are to be errors (PYTHONWARNINGS or -W) are shown as warnings: the libraries below warn of each "
    "other, which would end the command"
)


def prepare() -> None:
    sys.argv[1:] = map(as_utf8, sys.argv[1:])
    _ease_warnings()


def as_utf8(argument: str) -> str:
    """Text that was typed in UTF-8 under another locale, such as LC_ALL=C; anything else stays as it is."""
    with contextlib.suppress(UnicodeError):
        return argument.encode(sys.getfilesystemencoding(), "surrogateescape").decode("utf-8")
    return argument


def _ease_warnings() -> None:
    """Here and in the processes that are started from here."""
    wanted = os.environ.get("PYTHONWARNINGS", "")
    if not any(each.startswith("error") for each in (*wanted.split(","), *sys.warnoptions)):
        return
    os.environ["PYTHONWARNINGS"] = ",".join(map(_eased, wanted.split(",")))
    sys.warnoptions[:] = map(_eased, sys.warnoptions)
    warnings.resetwarnings()
    for option in sys.warnoptions:
        warnings._setoption(option)  # type: ignore[attr-defined]  # as Python itself does at its start
    print(_EASED, file=sys.stderr)


def _eased(option: str) -> str:
    return "default" + option.removeprefix("error") if option.startswith("error") else option
