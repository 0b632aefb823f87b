"""The model of a run that keeps its best checkpoint: its parameters in place of the last ones, in the same file."""

from __future__ import annotations

from pathlib import Path

import safetensors

from orchestrator.checkpoint import catalog
from orchestrator.checkpoint.manifest import steps_among
from orchestrator.checkpoint.storage import open_storage
from orchestrator.checkpoint.weights import Weights
from orchestrator.driver.report.outcome import BestModel
from orchestrator.errors import CheckpointDamaged, RunFailed
from orchestrator.numerics.digests import state_digest
from orchestrator.records import lines

_MODEL = "model/"


def put(storage: str, weights: Path, trace: Path) -> BestModel:
    """Write the parameters of the best evaluation over those of the last step. storage: where the checkpoints lie; trace: of
    the run, which has the digest after that evaluation. Raises RunFailed."""
    try:
        place = open_storage(storage)
        steps = steps_among(place.sizes())
        best = catalog.read(place, steps[0]).best if steps else []
        if not best:
            raise _missing("no evaluation of the run gave a number")
        with safetensors.safe_open(weights, framework="pt") as last:
            names = {_MODEL + name: name for name in last.keys()}  # noqa: SIM118
        state = catalog.load(place, catalog.read(place, best[0]), names.__contains__)
        found = {names[name]: tensor for name, tensor in state.tensors.items()}
        digest = state_digest(found)
        _check(digest, best[0], trace)
        unfinished = weights.with_suffix(".unfinished")
        Weights(found).write(unfinished)
        unfinished.rename(weights)
    except (CheckpointDamaged, OSError) as error:
        raise _missing(f"its checkpoint cannot be used: {error}") from error
    return BestModel(best[0], digest)


def _check(digest: str, step: int, trace: Path) -> None:
    """Check that the checkpoint is what the workers had. Raises RunFailed."""
    recorded = next((line.get("parameters") for line in lines.read(trace) if line["step"] == step - 1), None)
    if recorded not in (None, digest):
        raise _missing(f"the checkpoint of step {step} has the digest {digest}, and the workers had {recorded}")


def _missing(why: str) -> RunFailed:
    return RunFailed(
        f"checkpoint.model=best: there is no best model: {why}",
        "see to the place of the checkpoints and resume the run; checkpoint.model=last logs the last one, in a new run",
        code="checkpoint.no-best",
    )
