"""Language and time zone of a process: by them Python sorts, reads texts and takes times apart."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VARIABLE = re.compile(r"LC_\w+|LANG|LANGUAGE|TZ")
_LOCALTIME, _TIME_ZONE = Path("/etc/localtime"), Path("/etc/timezone")


def time_zone() -> str | None:
    """The time zone of this machine, which counts where TZ is not set; None where nobody knows its name."""
    if not _LOCALTIME.exists():
        return "UTC"
    if linked := os.path.realpath(_LOCALTIME).partition("/zoneinfo/")[2]:
        return linked
    try:
        return _TIME_ZONE.read_text().strip() or None
    except OSError:
        return None


def here() -> dict[str, str]:
    """The variables by which a process on another machine has the language and the time zone of this one."""
    zone = time_zone()
    found = {name: value for name, value in os.environ.items() if VARIABLE.fullmatch(name)}
    return found if zone is None else {"TZ": zone, **found}


def as_recorded(node: Mapping[str, Any]) -> dict[str, str | None]:
    """The variables that a rerun sets as this node of a record had them, None for one that it removes: those that are set
    otherwise here. Empty where the record does not tell."""
    host = node.get("host", {})
    told = host.get("variables")
    if not isinstance(told, Mapping):
        return {}
    then = {name: str(value) for name, value in told.items() if VARIABLE.fullmatch(name)}
    zone = host.get("time_zone")
    if "TZ" not in then and isinstance(zone, str) and ("TZ" in os.environ or zone != time_zone()):
        then["TZ"] = zone
    found = {**{name: None for name in os.environ if VARIABLE.fullmatch(name)}, **then}
    return {name: value for name, value in found.items() if os.environ.get(name) != value}
