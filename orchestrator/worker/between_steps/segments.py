"""The states in which the segments begin that an audit repeats: checkpoints of another run, which stay where they are."""

from __future__ import annotations

from orchestrator.checkpoint import catalog
from orchestrator.checkpoint.state import TrainingState
from orchestrator.checkpoint.storage import open_storage
from orchestrator.config.plan import Segments
from orchestrator.errors import CheckpointDamaged
from orchestrator.worker.member.generation import Wanted


def kept_state(segments: Segments, step: int, wanted: Wanted) -> TrainingState:
    """The state in which a segment begins, every byte verified. Raises CheckpointDamaged."""
    try:
        storage = open_storage(segments.storage)
        return catalog.load(storage, catalog.read(storage, step), wanted)
    except (CheckpointDamaged, OSError) as error:
        why = error.message if isinstance(error, CheckpointDamaged) else str(error)
        raise CheckpointDamaged(
            f"the checkpoint of step {step} of run {segments.of} in {segments.storage} cannot be used: {why}",
            "bring it back, or make the run's states anew: "
            f"rerun={segments.of} checkpoint.archive=STEPS, and audit that run",
            code="audit.checkpoint-unusable",
        ) from error
