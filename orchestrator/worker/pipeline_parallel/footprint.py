"""How much memory the worker of a stage needs for its parameters, gradients, sums, the optimizer's state, and for what crosses
its borders on a GPU. Pure.

It does not know partial sums, and what `worker/footprint.py` does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from orchestrator.config.plan import Plan
from orchestrator.numerics.layout import most_waiting
from orchestrator.worker.footprint import Needed, remembered, sums_of
from orchestrator.worker.pipeline_parallel.border_memory import bytes_of_places

_FLOAT32: Final = int(torch.float32.itemsize)
_WHILE_PREPARING: Final = 8  # bytes of each parameter of the whole model, with gradients of a part of it


def preparing_bytes(parameters: int) -> int:
    """The bytes of host memory that a worker needs while it has the whole model of so many parameters, to cut it and to prove
    the cut."""
    return _WHILE_PREPARING * parameters


def by_stage(stages: Mapping[str, Any], plan: Plan) -> list[Needed]:
    """The memory that a worker of each stage needs. stages: as `planning.summary` has them; those of an older record tell
    nothing of what crosses."""
    crossing = [0, *stages.get("crossing", [0] * len(stages["borders"])), 0]
    return [
        stage_needs(parameters, plan, crossing[stage + 1], crossing[stage])
        for stage, parameters in enumerate(stages["parameters"])
    ]


def stage_needs(parameters: int, plan: Plan, onward_bytes: int = 0, back_bytes: int = 0) -> Needed:
    """The memory that a worker of one stage needs. onward_bytes, back_bytes: of a micro-batch, over the borders behind and
    before the stage."""
    sums, on_card = sums_of(plan), plan.run.compute.device == "cuda"
    hosted = -(-plan.data.shards // max(1, plan.cluster.members.start // plan.cluster.members.stages))
    waiting = 1 if plan.sums_stay_on_device else min(hosted, max(2, most_waiting(parameters)))
    held = 1 + waiting + (plan.update.clip is not None) + (remembered(plan) or 0)
    needed = round(parameters * (sums.dtype.itemsize + sums.result.itemsize + held * _FLOAT32))
    return Needed(0, needed + bytes_of_places(onward_bytes, back_bytes, hosted)) if on_card else Needed(needed)


def sentence(stages: Mapping[str, Any], parameters: int, plan: Plan) -> str:
    """Says where the model of so many parameters is cut, what each stage holds and about needs for it, and its part of the
    computation."""
    begins = ["the first layers", *stages["borders"]]
    each = zip(begins, stages["parameters"], by_stage(stages, plan), stages["shares"], strict=True)
    lines = [
        f"stage {i} from {begin} ({held:,} parameters, {needed}, {share:.0%} of the computation)"
        for i, (begin, held, needed, share) in enumerate(each)
    ]
    return f"the model of {parameters:,} parameters is cut: {', '.join(lines)}"
