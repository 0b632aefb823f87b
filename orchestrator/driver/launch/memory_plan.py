"""How much memory workers will need, as far as that is known before anything is started."""

from __future__ import annotations

from typing import Any

from orchestrator.common.values import sized
from orchestrator.config.plan import Plan
from orchestrator.errors import ConfigurationError
from orchestrator.worker import strategies
from orchestrator.worker.model.construction import Rehearsal
from orchestrator.worker.voting.footprint import Needed


def planned(plan: Plan, built: Rehearsal, cut: dict[str, Any] | None) -> list[Needed]:
    """The memory that the worker of each stage needs: one entry if the model is whole. Empty if only a worker can tell. cut:
    as `planning.summary`."""
    if built.layout is None or (cut is None and plan.cluster.members.stages > 1):
        return []
    known = {
        "parameters": built.parameters,
        "layout": built.layout,
        "shard_state": plan.update.compression is not None,  # of most compressions
        **({} if cut is None else {"stages": cut}),
    }
    return strategies.needed(known, plan)


def refuse_what_exceeds(plan: Plan, memory: list[Needed]) -> None:
    """Raises ConfigurationError where a worker may not take of its GPU what it needs without any activation."""
    limit = plan.cluster.card_bytes
    for stage, needed in enumerate(memory):
        if limit is not None and needed.card > limit:
            whose = f"the worker of stage {stage}" if len(memory) > 1 else "a worker"
            raise ConfigurationError(
                [f"cluster.gpu_gb: {whose} needs {sized(needed.card)} beside activations, and may take {sized(limit)}"],
                "raise cluster.gpu_gb, or cut the model into more stages (cluster.stages), each with a worker",
                code="gpu.limit-too-low",
            )
