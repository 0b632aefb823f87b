"""The interface of a writer: what it is told of a run, and what it is asked."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from orchestrator.errors import Status


@dataclass(frozen=True)
class LoggedRun:
    """A run as it begins."""

    run_id: str  # of the record
    name: str  # of the run, for people
    experiment: str  # its name
    folder: Path  # its own, in which a writer may make a folder
    settings: Mapping[str, Any]  # by dotted key, without credentials
    note: str | None = None  # of whoever launched it; None where there is none
    tags: Mapping[str, str | None] | None = None  # by name; None where there are none
    since: int | None = None  # of a run that goes on, the first step that it tells again; None for a new one


class Logger(Protocol):
    def metrics(self, step: int, values: Mapping[str, float], /) -> object: ...

    def end(self, status: Status, results: Mapping[str, Any], /) -> object: ...


def missing(package: str) -> str | None:
    """The sentence for a package that is not installed."""
    if importlib.util.find_spec(package) is not None:
        return None
    return f"{package} is not installed; pip install {package}, or leave it out of tracking.also"
