"""What a writer is told of a run, and what it is asked."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

Status = Literal["finished", "failed", "killed"]


@dataclass(frozen=True)
class Told:
    """A run as it begins. folder: its own, in which a writer may make a folder; settings: by dotted key, without credentials;
    tags: by name; since: the step from which on it is told of a run that goes on, None for a new one."""

    run_id: str
    name: str
    experiment: str
    folder: Path
    settings: Mapping[str, Any]
    note: str | None = None
    tags: Mapping[str, str | None] | None = None
    since: int | None = None


class Writer(Protocol):
    def metrics(self, step: int, values: Mapping[str, float], /) -> object: ...

    def end(self, status: Status, results: Mapping[str, Any], /) -> object: ...


def missing(package: str) -> str | None:
    """What to say where a package is not installed."""
    if importlib.util.find_spec(package) is not None:
        return None
    return f"{package} is not installed; pip install {package}, or leave it out of tracking.also"
