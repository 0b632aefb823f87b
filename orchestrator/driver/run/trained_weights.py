"""The trained weights at the end of a run, from the workers that have them into one file.

If every worker has the whole model, any of them gives it. If the model is in stages, one worker of each stage gives its part,
and the parts are made one file here: nobody has the whole model in memory, and no checkpoint is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from orchestrator.checkpoint.weights import merge
from orchestrator.cluster.actors.members import Members, unwritten
from orchestrator.errors import WorkerLost


def save(members: Members, holders: Sequence[Sequence[int]], path: Path) -> int:
    """holders: of each stage, in their order, the workers that have it. Returns one that gave some. Raises WorkerLost when all
    who hold a stage are gone, and RunFailed when a file cannot be written."""
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
