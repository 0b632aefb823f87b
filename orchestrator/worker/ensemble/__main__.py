"""Combine the members of an ensemble: `python -m orchestrator.worker.ensemble REQUEST ANSWER` (see `request.py`)."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from orchestrator.adapters import table
from orchestrator.common import listings
from orchestrator.common.values import Steps
from orchestrator.config.plan import Compute, Data, Run
from orchestrator.errors import Inconsistent, OrchestratorError
from orchestrator.numerics import determinism
from orchestrator.numerics.digests import model_digest
from orchestrator.worker.ensemble import saved
from orchestrator.worker.ensemble.judging import Judge
from orchestrator.worker.ensemble.model import EnsembleModel
from orchestrator.worker.ensemble.request import Combined, Request, answer
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter


def combine(request: Request) -> Combined:
    """Raises ConfigurationError, PipelineRaised, Inconsistent, UsageError."""
    blueprint, computing = request.blueprint, request.computing
    determinism.prepare_thread(computing.threads, arithmetic=computing.arithmetic)
    compute = Compute("cpu", computing.threads, computing.precision, False, computing.arithmetic)
    run = Run(blueprint.source, compute, computing.seed, computing.steps, None)
    data = Data(1, Steps.constant(computing.rows), 0, seed=computing.seed)
    workload = PipelineAdapter(table.find(blueprint.source), run, data)
    judge = Judge(workload, computing.rows, computing.steps - 1, computing.seed)
    model = blueprint.build(workload.pipeline)
    _fill(model, request)
    chooses = model.combination.chooses
    judge.halves(chooses=chooses)  # refuses before anything is computed
    weights = judge.choose(model) if chooses else model.combination.weigh(_no_loss)
    model.weigh(weights)
    return judge.judge(model, saved.save(model, blueprint, Path(request.to)), chooses=chooses)


def _fill(model: EnsembleModel, request: Request) -> None:
    from safetensors.torch import load_file

    for member, (file, digest) in enumerate(zip(request.weights, request.digests, strict=True)):
        saved.fill(model.members[member], load_file(file), file)
        if model_digest(model.members[member]) != digest:
            raise Inconsistent(
                f"{file} is not the model that member {member} ended with, whose digest is {digest[:12]}",
                "restore it from the artifacts of that run, in its folder model/",
                code="ensemble.other-member",
            )


def _no_loss(weights: object) -> float:  # noqa: ARG001
    raise AssertionError("a combination that chooses no weights asks for no loss")


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # who asked says that it was interrupted
    listings.by_name()
    request, told = Path(sys.argv[1]), Path(sys.argv[2])
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Combined | OrchestratorError = combine(Request.read(request))
    except OrchestratorError as error:
        found = error
    answer(told, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
