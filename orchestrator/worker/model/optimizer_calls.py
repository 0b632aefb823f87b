"""The calls into what changes parameters: the optimizer, local optimizers, and the pipeline's rate(). Errors by name.

A worker that joins gets parameters, the optimizer's state and the pipeline as it was built. It would lack whatever else a call
changes, so such a change is refused here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from orchestrator.config.plan import Variant
from orchestrator.errors import PipelineRaised
from orchestrator.numerics import streams
from orchestrator.optim import optimizer_state, optimizers
from orchestrator.pipeline import Pipeline, has_rate, naming
from orchestrator.worker.model import watched_step
from orchestrator.worker.model.output_checks import number_of
from orchestrator.worker.model.training_samples import TrainingSamples
from orchestrator.worker.model.watched_step import Step, take


class OptimizerCalls:
    """Those of a run with this model. samples: say how messages call a micro-batch."""

    def __init__(self, pipeline: Pipeline, model: torch.nn.Module, samples: TrainingSamples, seed: int) -> None:
        self._pipeline = pipeline
        self._model = model
        self._samples = samples
        self._seed = seed

    @property
    def has_rate(self) -> bool:
        return has_rate(type(self._pipeline)) and not getattr(self._pipeline, "follows_settings", False)

    def rate(self, step: int) -> float:
        """The pipeline's own factor on the learning rates. Raises PipelineRaised."""
        before = self._numbers_kept()
        with naming(f"rate() (step {step})"), streams.seeded(self._seed, "rate", step):
            returned: Any = self._pipeline.rate(step)
            factor = number_of(returned)
            if factor is None or not 0 <= factor < math.inf:
                raise PipelineRaised(
                    f"rate() (step {step}) returned {returned!r}",
                    "return the factor on the learning rates at this step, a number that is 0 or more",
                    code="pipeline.rate",
                )
        for name, number in self._numbers_kept().items():
            if before.get(name, number) != number:
                vars(self._pipeline).update(before)  # so that whoever asks next is told, too
                raise PipelineRaised(
                    f"rate() changed the attribute {name!r} of the pipeline (step {step}), which a worker that joins would "
                    "not have",
                    "a loss that changes along the run takes the number of the step: def loss(self, model, batch, step=0); a "
                    "number that nothing follows from may have a name that begins with _",
                    code="pipeline.rate-changes",
                )
        return factor

    def _numbers_kept(self) -> dict[str, float]:
        """The pipeline's own numbers of which something may follow."""
        kept = vars(self._pipeline).items()
        return {name: each for name, each in kept if isinstance(each, (int, float)) and not name.startswith("_")}

    def local_optimizer(
        self, variant: Variant, parameters: Sequence[torch.nn.Parameter], step: int, shard: int
    ) -> torch.optim.Optimizer:
        """A new one over these parameters: which of the model's are trained now depends on the micro-batch before, by which a
        loss may have frozen some."""
        what = f"building the local optimizer (round {step}{self._samples.whose(step, shard)})"
        with naming(what), streams.seeded(self._seed, "local optimizer", step, shard):
            return optimizers.build_over(variant.name, variant.options, parameters)

    def optimize_locally(self, step: int, shard: int, optimizer: torch.optim.Optimizer, *, replayed: bool) -> None:
        """One step of a shard's own optimizer, which finds its gradients at the parameters. replayed: by a recording, whose
        next replay overwrites them."""
        where = f"the local optimizer ({self._samples.where(step, shard)})"
        optimizers.begin_late(optimizer)
        places = None if optimizers.is_of_torch(optimizer) else watched_step.places_of(self._model)
        with naming(where), streams.seeded(self._seed, "local optimizer step", step, shard):
            optimizer.step()
        if places is not None:
            watched_step.settle(optimizer, self._model, places)
        if replayed:
            found = (parameter.grad for parameter in self._model.parameters())
            optimizer_state.keep_own(optimizer, *(gradient for gradient in found if gradient is not None))

    def optimize(
        self, step: int, optimizer: torch.optim.Optimizer, gradients: torch.Tensor, act: Callable[[], object]
    ) -> None:
        """One step of the optimizer, by `act`, which finds its gradients as views of `gradients`; peers may still be reading
        those."""
        take(Step(step, self._seed, optimizer, self._model), gradients, act)
