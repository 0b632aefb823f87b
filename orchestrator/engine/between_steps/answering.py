"""After the training: may rows be answered apart when the model is served? Tried with samples, where it has been trained.

What it does not do: serve (`orchestrator.serving`).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from orchestrator.engine.model.workload import Workload
from orchestrator.errors import OrchestratorError
from orchestrator.numerics import determinism, tiles
from orchestrator.numerics.streams import seeded
from orchestrator.numerics.tiles import Tried
from orchestrator.pipeline import naming
from orchestrator.plan import Plan


def answers(plan: Plan, workload: Workload) -> dict[str, Any]:
    """What was found, as plain data; of a run with noise nothing that is of its samples."""
    if plan.cluster.members.stages > 1:
        found = Tried(None, "no worker had the whole model to try it")
    else:
        found = _tried(workload, plan.run.seed, plan.run.compute.arithmetic)
    if plan.data.privacy is not None:
        found = dataclasses.replace(found, detail=None)
    return dataclasses.asdict(found)


def _tried(workload: Workload, seed: int, arithmetic: determinism.Arithmetic) -> Tried:
    determinism.prepare_thread(1, arithmetic=arithmetic)
    try:
        with seeded(seed, "predict"):
            with naming("example()"):
                inputs = workload.pipeline.example(workload.samples(tiles.EXAMPLES))
            with naming("predict()"), _asked(workload.model) as model, torch.no_grad():
                return tiles.tried(lambda rows: workload.pipeline.predict(model, rows), inputs)
    except OrchestratorError as error:
        return Tried(None, "it could not be tried with what example() gives", error.message.partition("\n")[0])


@contextmanager
def _asked(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The model in evaluation mode and in host memory."""
    if any(each.device.type != "cpu" for each in (*model.parameters(), *model.buffers())):
        yield copy.deepcopy(model).cpu().eval()
        return
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield model.eval()
    finally:
        for module, mode in modes:
            module.training = mode
