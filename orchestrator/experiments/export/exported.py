"""The place of an export, which has to be new, and the report of what was written there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigurationError, UsageError


@dataclass(frozen=True)
class Exported(ABC):
    """A run, or something of it, that was exported."""

    run_id: str  # of the run
    to: str  # file or folder that was made

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "status": "finished"}

    @abstractmethod
    def as_text(self) -> str: ...


def require_free(to: Path) -> None:
    """Raises UsageError."""
    if to.exists():
        raise UsageError(f"to={to}: it exists", "name another place, or remove it", code="export.place-exists")
    if not to.absolute().parent.is_dir():
        raise UsageError(
            f"to={to}: there is no folder {to.absolute().parent}",
            "make it, or name another place",
            code="export.no-folder",
        )


@contextmanager
def writing(to: Path, remedy: str = "name another place") -> Iterator[None]:
    """Within, an OSError is a ConfigurationError about this place."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            [f"to={to}: it cannot be written: {error.strerror}"], remedy, code="export.unwritable"
        ) from error
