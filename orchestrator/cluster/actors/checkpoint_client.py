"""How a member reads and writes the checkpoints of its run.

A member prepares while the driver still opens the record of the run, so where the checkpoints lie is not known when the
member is built; `open` is called by the first generation that names the location.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.checkpoint.catalog import load, read
from orchestrator.checkpoint.state import TrainingState
from orchestrator.checkpoint.storage import Storage, open_shared, open_storage
from orchestrator.checkpoint.writer import PartWriter
from orchestrator.errors import CheckpointDamaged


class CheckpointClient:
    """Reads and writes the checkpoints of one member; implements `worker.member.generation.CheckpointWriter`, and `load` of its
    ProcessServices. emit: receives the events about written parts."""

    def __init__(self, emit: Callable[[dict[str, Any]], None]) -> None:
        self._emit = emit
        self._storage: Storage | None = None
        self._writer: PartWriter | None = None

    def open(self, place: str, *, tries: bool = False) -> None:
        """Use this location. tries: whether a small file is written there first. Raises ConfigurationError where it cannot hold
        checkpoints."""
        if self._storage is None:
            self._storage = open_shared(place) if tries else open_storage(place)
            self._writer = PartWriter(self._storage, self._emit)

    @property
    def is_open(self) -> bool:
        return self._storage is not None

    def put(self, name: str, data: bytes) -> None:
        """A file beside the checkpoints. Raises OSError."""
        assert self._storage is not None
        self._storage.put(name, [data])

    @property
    def busy(self) -> bool:
        return self._writer is not None and self._writer.busy

    def begin(self, state: TrainingState, *, step: int, generation: int, part: int, parts: int, since: float) -> None:
        assert self._writer is not None
        self._writer.begin(state, step=step, generation=generation, part=part, parts=parts, since=since)

    def reserve(self, state: TrainingState, *, part: int, parts: int) -> None:
        assert self._writer is not None
        self._writer.reserve(state, part=part, parts=parts)

    def copied(self, timeout_s: float | None = None) -> bool:
        return self._writer is None or self._writer.copied(timeout_s)

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._writer is None or self._writer.wait(timeout_s)

    def load(self, step: str, wanted: Callable[[str], bool] | None = None) -> TrainingState:
        """The state in the checkpoint of that step, with every byte verified. wanted: as for `catalog.load`. Raises
        CheckpointDamaged, also where it cannot be read."""
        assert self._storage is not None
        try:
            return load(self._storage, read(self._storage, int(step)), wanted)
        except (CheckpointDamaged, OSError) as error:
            why = error.message if isinstance(error, CheckpointDamaged) else str(error)
            raise CheckpointDamaged(
                f"the checkpoint of step {step} could not be restored, though it was good a moment ago: {why}",
                "see to the place of the checkpoints and resume the run: it goes on from the newest one that is good",
                code="checkpoint.not-restored",
            ) from error
