"""The trained weights at the end of a run, from the workers that have them into one file.

If every worker has the whole model, any of them gives it. If the model is in stages, one worker of each stage gives its part,
and the parts are made one file here: nobody has the whole model in memory, and no checkpoint is needed.

If the run keeps its best checkpoint (`checkpoint.model=best`), its parameters replace the last ones, in the same file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import safetensors

from orchestrator.checkpoint import catalog
from orchestrator.checkpoint.manifest import steps_among
from orchestrator.checkpoint.storage import open_storage
from orchestrator.checkpoint.weights import Weights, merge
from orchestrator.cluster.actors.members import Members, unwritten
from orchestrator.driver.report.outcome import BestModel
from orchestrator.errors import CheckpointDamaged, RunFailed, WorkerLost
from orchestrator.numerics.digests import state_digest
from orchestrator.records import lines

_MODEL = "model/"


def save(members: Members, holders: Sequence[Sequence[int]], path: Path) -> int:
    """Bring the trained weights into one file. holders: of each stage, in their order, the workers that have it. Returns
    one that gave some. Raises WorkerLost when all who hold a stage are gone, and RunFailed when a file cannot be written."""
    parts = [path.with_name(f"{path.name}.stage-{stage}") for stage in range(len(holders))]
    try:
        if len(holders) == 1:
            return _saved(members, holders[0], path)
        givers = [_saved(members, having, part) for having, part in zip(holders, parts, strict=True)]
        merge(parts, path)
        return givers[0]
    except OSError as error:
        raise unwritten(str(path), error) from error
    finally:
        for part in path.parent.glob(f"{path.name}.stage-*"):  # those of a driver that was killed here, too
            part.unlink()


def _saved(members: Members, having: Sequence[int], path: Path) -> int:
    for member in having[:-1]:
        with contextlib.suppress(WorkerLost):
            members.save_weights(member, str(path))
            return member
    members.save_weights(having[-1], str(path))
    return having[-1]


def put_best(storage: str, weights: Path, trace: Path) -> BestModel:
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
