"""Checkpoints in the driver: workers report the parts that they have written, and the driver commits them as a
checkpoint.

A checkpoint exists if and only if its manifest does (law 5), and only this process writes and removes manifests (rule
D7). Parts of one (generation, step) belong together; the parts of two checkpoints that follow each other closely may
come interleaved, since each worker reports on its own. A checkpoint whose generation has ended before all parts came is
given up, and `given_up` says that another one is to be begun at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.checkpoint.catalog import Catalog
from orchestrator.checkpoint.manifest import Manifest
from orchestrator.errors import CheckpointDamaged

_Key = tuple[int, int]  # generation, step


@dataclass(frozen=True)
class SavedCheckpoint:
    """A committed checkpoint. stall_s: the longest time that a worker stopped training for it."""

    manifest: Manifest
    parts: int
    stall_s: float
    seconds: float

    @property
    def step(self) -> int:
        return self.manifest.step


class Saving:
    """Collects parts and commits checkpoints.

    trouble: why the last one could not be written, for the caller to
    report and to clear; given_up: one was begun that will never be complete, likewise.
    """

    def __init__(self, catalog: Catalog, *, repeats: bool = True) -> None:
        """repeats: as of `Plan`."""
        self._catalog = catalog
        self._repeats = repeats
        self._open: dict[_Key, dict[int, dict[str, Any]]] = {}  # the parts that have come, by number
        self._committed: _Key = (-1, -1)
        self._failed = False  # whether a part has failed since, which may be the last that a lost member told
        self._told: set[tuple[_Key, str]] = set()  # troubles of parts since the last checkpoint
        self.trouble: str | None = None
        self.given_up = False

    def newest(self) -> tuple[int | None, list[str]]:
        """The step of the newest good checkpoint, and why newer ones were passed over."""
        found = self._catalog.latest()
        step = None if found.manifest is None else found.manifest.step
        if found.reasons and not self._repeats:  # those may be read again later, and are of steps that are others then
            self._catalog.latest(until=step or 0)
        return step, found.reasons

    def heard(self, entry: dict[str, Any]) -> SavedCheckpoint | None:
        """Take a `part_written` or `part_failed` entry of a worker; returns the checkpoint that this entry
        completes, or None."""
        key = (entry["generation"], entry["step"])
        if key <= self._committed:
            return None
        if entry["event"] == "part_failed":
            self._failed = True
            if (key, entry["why"]) not in self._told:  # a full disk is one trouble, whatever the number of parts
                self.trouble = entry["why"]
                self._told.add((key, entry["why"]))
            self._forget(key)
            return None
        parts = self._open.setdefault(key, {})
        parts[entry["part"]] = entry
        self._catalog.pin([entry["blob"]["name"]])
        return self._commit(key) if len(parts) == entry["parts"] else None

    def generation_ended(self) -> None:
        """Parts of it that are still missing will not come any more, and one that failed may be written by another member."""
        if self._open or self._failed:
            self.given_up = True
        self._failed = False
        for key in list(self._open):
            self._forget(key)

    def goes_back(self, generation: int) -> None:
        """This generation begins with a checkpoint. Parts of an earlier one that are told later, as by a worker that was cut
        off, are of another history, unless its steps have the same bits again."""
        if not self._repeats:
            self._committed = max(self._committed, (generation, -1))

    def _commit(self, key: _Key) -> SavedCheckpoint | None:
        """And no older one any more."""
        step, parts = key[1], list(self._open[key].values())
        try:
            saved = self._catalog.commit(step, parts)
        except (OSError, CheckpointDamaged) as error:
            self.trouble = str(error)
            return None
        finally:
            self._committed, self._failed = key, False
            self._told.clear()
            for older in [each for each in self._open if each <= key]:
                self._forget(older)
        self.trouble = saved.trouble or None
        stall_s, seconds = (max(part[name] for part in parts) for name in ("stall_s", "seconds"))
        return SavedCheckpoint(saved.manifest, len(parts), stall_s, seconds)

    def _forget(self, key: _Key) -> None:
        gone = _blobs(self._open.pop(key, {}))
        self._catalog.unpin(gone.difference(*map(_blobs, self._open.values())))


def _blobs(parts: Mapping[int, Mapping[str, Any]]) -> set[str]:
    return {part["blob"]["name"] for part in parts.values()}
