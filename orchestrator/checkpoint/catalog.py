"""The checkpoints of a run, as its driver sees them: commit one, prune, find the newest good one; and load one.

The order of writes is the whole trick: blobs, then the manifest; to delete: the manifest, then blobs. So a crash between any
two leaves files that nothing refers to, never a manifest that refers to nothing (`tests/checkpoint/test_crashes.py`).

A blob that no manifest refers to may be part of a checkpoint that is being written this moment, or of one the driver has not
heard of yet. A driver that is behind commits several checkpoints at once, while newer ones lie there already. So it is
deleted only after a commit of parts that came after it, whose news came later than its own, and only after a while.

It never runs twice at a time on one folder (rule D7): the lease on a run sees to that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from orchestrator.checkpoint.manifest import Blob, Manifest, is_blob, manifest_name, steps_among
from orchestrator.checkpoint.parts import read_part, read_some
from orchestrator.checkpoint.state import TrainingState
from orchestrator.checkpoint.storage import Remote, Storage, bring
from orchestrator.common import injection
from orchestrator.errors import CheckpointDamaged

ABANDONED_AFTER_S = 60.0


class NewestGood(NamedTuple):
    """The newest good checkpoint, or None; and a sentence for each newer one that is not good."""

    manifest: Manifest | None
    reasons: list[str]


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was committed. trouble: why old checkpoints could not be removed, or ""; the new one stands in any
    case."""

    manifest: Manifest
    trouble: str


class _Listed(NamedTuple):
    """The part of a manifest that decides what is removed. blobs: name -> bytes."""

    blobs: Mapping[str, int]
    is_archived: bool


class Catalog:
    """The checkpoints of one run, for its driver. keep: how many good checkpoints stay, beside the best and the archived ones;
    abandoned_after_s: how long a blob stays that belongs to none. Used by one thread of the driver."""

    def __init__(self, storage: Storage, keep: int, *, abandoned_after_s: float = ABANDONED_AFTER_S) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep}: at least one checkpoint has to stay")
        self._storage = storage
        self._keep = keep
        self._pinned: set[str] = set()
        self._abandoned_after_s = abandoned_after_s
        self._prunings = 0
        self._seen: dict[str, tuple[int, float]] = {}  # blob -> at which pruning first, and when on the monotonic clock
        self._rejected: set[int] = set()  # steps whose files are there but not good
        # by step, manifests that stay though they are old: an archive has thousands, and each would be read at each commit
        self._old: dict[int, _Listed] = {}

    def pin(self, names: Iterable[str]) -> None:
        """Blobs of a checkpoint that is not complete yet: pruning leaves them alone."""
        self._pinned.update(names)

    def unpin(self, names: Iterable[str]) -> None:
        """Let go of the blobs of a checkpoint that was given up. (A commit unpins its own.)"""
        self._pinned.difference_update(names)

    def commit(self, step: int, parts: Sequence[Mapping[str, Any]]) -> Saved:
        """Make a checkpoint of the `part_written` events of all its parts, and remove what is too old.

        An older checkpoint of the same step is replaced. Raises CheckpointDamaged when the parts are no whole, OSError when
        the storage fails; the checkpoints before are untouched then.
        """
        manifest = _manifest(step, parts)
        _check_presence(manifest, self._storage)
        self._storage.put(manifest.name, [manifest.to_json()])
        self._rejected.discard(step)
        self._old.pop(step, None)
        self.unpin(blob.name for blob in manifest.blobs)
        try:
            injection.at("manifest", step)
            self._prune(manifest)
        except OSError as error:
            return Saved(manifest, f"old checkpoints could not be removed: {error}")
        return Saved(manifest, "")

    def latest(self, until: int | None = None, *, can_wait: bool = False) -> NewestGood:
        """Reads and verifies whole checkpoints, newest first, until one is good. until: a step; what was saved after it is
        forgotten. can_wait: a store that does not give a file that it has is no damage. Raises CheckpointDamaged for that,
        and if nothing can be listed, or forgotten."""
        reasons = []
        try:
            sizes = self._storage.sizes()
        except OSError as error:
            raise CheckpointDamaged(
                f"the checkpoints cannot be listed: {_say(error)}", "see to their place", code="checkpoint.not-listed"
            ) from error
        for step in steps_among(sizes):
            if until is not None and step > until:
                self._forget(step)
                continue
            try:
                manifest = read(self._storage, step)
                for blob in manifest.blobs:
                    read_part(self._storage, blob)
            except (CheckpointDamaged, OSError) as error:
                if can_wait and isinstance(self._storage, Remote) and isinstance(error, OSError):
                    raise _not_read(step, error) from error
                reasons.append(f"checkpoint {step} is not used: {_say(error)}")
                self._rejected.add(step)
            else:
                return NewestGood(manifest, reasons)
        return NewestGood(None, reasons)

    def _forget(self, step: int) -> None:
        try:
            self._storage.delete(manifest_name(step))
        except OSError as error:
            raise CheckpointDamaged(
                f"the checkpoint of step {step} cannot be removed: {_say(error)}",
                "see to its place",
                code="checkpoint.not-removed",
            ) from error

    def _prune(self, just_saved: Manifest) -> None:
        """The best ones that stay are those that were the best when the newest was saved."""
        sizes = self._storage.sizes()
        manifests = {step: self._old.get(step) or self._readable(step) for step in steps_among(sizes)}
        good = [step for step, manifest in manifests.items() if manifest and self._is_good(step, manifest, sizes)]
        oldest_kept = good[self._keep - 1] if len(good) >= self._keep else 0
        archived = [step for step, manifest in manifests.items() if manifest and manifest.is_archived]
        staying = {just_saved.step, *just_saved.best, *archived}
        doomed = [step for step in manifests if step < oldest_kept and step not in staying]
        for step in reversed(doomed):
            self._storage.delete(manifest_name(step))
        left = {step: manifest for step, manifest in manifests.items() if step not in doomed}
        self._old = {step: manifest for step, manifest in left.items() if manifest and step < oldest_kept}
        referenced = _blobs(left.values()) | self._pinned
        unreferenced = {name for name in sizes if is_blob(name)} - referenced
        garbage = unreferenced & (_blobs(manifests[step] for step in doomed) | self._abandoned(just_saved, sizes))
        for name in sorted(garbage):
            self._storage.delete(name)

    def _abandoned(self, just_saved: Manifest, sizes: Mapping[str, int]) -> set[str]:
        """The blobs of which no news will come any more, as far as they belong to no checkpoint."""
        now = time.monotonic()
        self._prunings += 1
        self._seen = {name: self._seen.get(name, (self._prunings, now)) for name in sizes if is_blob(name)}
        came = max(self._seen.get(blob.name, (0, now))[0] for blob in just_saved.blobs)  # a part may be that of before
        return {
            name for name, (at, since) in self._seen.items() if at < came and now - since >= self._abandoned_after_s
        }

    def _readable(self, step: int) -> _Listed | None:
        try:
            manifest = read(self._storage, step)
        except CheckpointDamaged:
            return None
        return _Listed({blob.name: blob.size_bytes for blob in manifest.blobs}, manifest.is_archived)

    def _is_good(self, step: int, manifest: _Listed, sizes: Mapping[str, int]) -> bool:
        """As far as a look at the listing tells, and a verification before."""
        present = all(sizes.get(name) == size_bytes for name, size_bytes in manifest.blobs.items())
        return present and step not in self._rejected


def read(storage: Storage, step: int) -> Manifest:
    """The manifest of a step. Raises CheckpointDamaged, or OSError when the storage fails."""
    try:
        data = storage.get(manifest_name(step))
    except FileNotFoundError as error:
        raise CheckpointDamaged("its manifest is missing", code="checkpoint.no-manifest") from error
    manifest = Manifest.from_json(data)
    if manifest.step != step:
        raise CheckpointDamaged(f"its manifest is the one of step {manifest.step}", code="checkpoint.other-step")
    return manifest


def load(storage: Storage, manifest: Manifest, wanted: Callable[[str], bool] | None = None) -> TrainingState:
    """The state, every file and every tensor verified. wanted: which tensors, by their names; the others are neither read nor
    verified. Raises CheckpointDamaged, or OSError when the storage fails."""
    tensors: dict[str, torch.Tensor] = {}
    for blob in manifest.blobs:
        tensors.update(read_part(storage, blob) if wanted is None else read_some(storage, blob, wanted))
    return TrainingState(manifest.values, tensors)


def carry(source: Storage, target: Storage, step: int) -> Manifest:
    """Have the checkpoint of a step at another place, too, every byte verified. Raises CheckpointDamaged, or OSError when a
    storage fails."""
    manifest = read(source, step)
    for blob in manifest.blobs:
        read_part(source, blob)
        bring(source, target, blob.name)
    target.put(manifest.name, [manifest.to_json()])
    return manifest


def _manifest(step: int, parts: Sequence[Mapping[str, Any]]) -> Manifest:
    ordered = sorted(parts, key=lambda part: part["part"])
    wholes = {(part["step"], part["generation"], part["parts"]) for part in parts}
    if len(wholes) != 1 or [part["part"] for part in ordered] != list(range(ordered[0]["parts"])):
        raise CheckpointDamaged(
            f"the parts of checkpoint {step} do not belong together: {sorted(wholes)}", code="checkpoint.mixed-parts"
        )
    if ordered[0]["step"] != step:
        raise CheckpointDamaged(
            f"the parts of checkpoint {step} are of step {ordered[0]['step']}", code="checkpoint.parts-of-other-step"
        )
    blobs = tuple(Blob.from_dict(part["blob"]) for part in ordered)
    names = [name for blob in blobs for name in blob.tensors]
    if len(names) != len(set(names)):
        raise CheckpointDamaged(f"two parts of checkpoint {step} hold the same tensor", code="checkpoint.tensor-twice")
    return Manifest(step, dict(ordered[0]["values"]), blobs)


def _check_presence(manifest: Manifest, storage: Storage) -> None:
    sizes = storage.sizes()
    for blob in manifest.blobs:
        if sizes.get(blob.name) != blob.size_bytes and not _is_there(storage, blob):
            raise CheckpointDamaged(
                f"a part of checkpoint {manifest.step} was reported but is not there: {blob.name} "
                f"has {sizes.get(blob.name, 'no')} bytes instead of {blob.size_bytes}",
                "workers and driver have to see the same folder: set checkpoint.uri to a place that they share",
                code="checkpoint.part-absent",
            )


def _is_there(storage: Storage, blob: Blob) -> bool:
    """Asked for by its name, with its last byte: the listing of a network file system may be older than the file."""
    try:
        return len(storage.get(blob.name, blob.size_bytes - 1, blob.size_bytes + 1)) == 1
    except FileNotFoundError:
        return False


def _blobs(manifests: Iterable[_Listed | None]) -> set[str]:
    return {name for manifest in manifests if manifest for name in manifest.blobs}


def _not_read(step: int, error: OSError) -> CheckpointDamaged:
    return CheckpointDamaged(
        f"the checkpoint of step {step} is there and cannot be read: {_say(error)}",
        f"see to its place; without its file {manifest_name(step)} the one before is taken",
        code="checkpoint.not-read",
    )


def _say(error: Exception) -> str:
    return getattr(error, "message", None) or str(error)
