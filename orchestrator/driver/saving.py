"""Checkpoints as the driver sees them: parts come from the workers, and here they become a checkpoint.

A checkpoint exists if and only if its manifest does (law 5), and only this process writes and removes manifests (rule D7).
Parts of one (generation, step) belong together. A checkpoint whose generation has ended before all parts came is given up,
and `given_up` says that another is wanted at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from orchestrator.checkpoints.catalog import Catalog
from orchestrator.errors import CheckpointDamaged


@dataclass
class _Open:
    """A checkpoint of which some parts have come."""

    generation: int
    step: int
    parts: dict[int, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Saved:
    """A committed checkpoint. stall_s: the longest that a worker stood still for it."""

    step: int
    parts: int
    size_bytes: int
    stall_s: float
    seconds: float


class Saving:
    """Collects parts and commits. catalog: None where no checkpoints are kept. trouble: why the last one could not be written,
    for the caller to tell and to clear; given_up: one was begun that will never be complete, likewise."""

    def __init__(self, catalog: Catalog | None) -> None:
        self._catalog = catalog
        self._open: _Open | None = None
        self.trouble: str | None = None
        self.given_up = False

    def newest(self) -> tuple[int | None, list[str]]:
        """The step of the newest good checkpoint, and why newer ones were passed over."""
        if self._catalog is None:
            return None, []
        found = self._catalog.latest()
        return None if found.manifest is None else found.manifest.step, found.reasons

    def heard(self, entry: dict[str, Any]) -> Saved | None:
        """A `part_written` or `part_failed` entry of a worker; the checkpoint that is committed with it, if one is."""
        assert self._catalog is not None
        generation, step = entry["generation"], entry["step"]
        if self._open is not None and (self._open.generation, self._open.step) > (generation, step):
            return None
        if self._open is None or (self._open.generation, self._open.step) != (generation, step):
            self._forget()
            self._open = _Open(generation, step)
        if entry["event"] == "part_failed":
            self.trouble = entry["why"]
            return None
        self._open.parts[entry["part"]] = entry
        self._catalog.pin([entry["blob"]["name"]])
        return self._commit(self._open) if len(self._open.parts) == entry["parts"] else None

    def generation_ended(self) -> None:
        """Parts that are still missing do not come any more."""
        if self._open is not None:
            self.given_up = True
            self._forget()

    def _commit(self, complete: _Open) -> Saved | None:
        assert self._catalog is not None
        parts = list(complete.parts.values())
        try:
            saved = self._catalog.commit(complete.step, parts)
        except (OSError, CheckpointDamaged) as error:
            self.trouble = str(error)
            return None
        finally:
            self._forget()
        self.trouble = saved.trouble or None
        stall_s = max(part["stall_s"] for part in parts)
        return Saved(
            complete.step, len(parts), saved.manifest.size_bytes, stall_s, max(part["seconds"] for part in parts)
        )

    def _forget(self) -> None:
        if self._catalog is not None and self._open is not None:
            self._catalog.unpin(part["blob"]["name"] for part in self._open.parts.values())
        self._open = None
