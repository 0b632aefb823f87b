"""A worker's work at a boundary between steps, with all that it holds: the whole model, or a stage of one.

Digests and evaluations belong to the whole model. A worker that has all of it (`Whole`) computes them by itself; of a model in
stages all members take part in each (`worker.pipeline_parallel.boundary`), so all call these at the same boundary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Protocol

import torch

from orchestrator.numerics.digests import distinct_state, model_digest, tensor_digests
from orchestrator.worker.between_steps import evaluation
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.replica import Replica


class Boundary(Protocol):
    """The boundary of one worker. Raises what the transport raises if all members take part."""

    def digest(self) -> str:
        """The digest of the whole model."""

    def digested(self) -> tuple[Mapping[str, torch.Tensor], Set[str]] | None:
        """The tensors of that digest themselves, and the names of those that stay until the next update; None if this worker
        does not have all of them."""

    def tensor_digests(self) -> dict[str, str]:
        """The digest of each tensor of the whole model, by its name."""

    def evaluate(self, shards: Sequence[int], step: int, beat: evaluation.Beat) -> evaluation.Results:
        """This worker's part of the evaluation after a step."""

    def begin_save(self, writers: Sequence[int]) -> None:
        """All members are about to take a checkpoint, which these ranks write."""

    def part(self, writers: Sequence[int]) -> tuple[int, int] | None:
        """Which of how many this member writes of what members of its stage alone have, where these ranks write; None if it
        writes none, and where all members have all."""

    def state(self) -> dict[str, torch.Tensor]:
        """The model's parameters and persistent buffers themselves, as far as this worker has them; a worker of another stage
        has others."""

    def unsaved(self) -> dict[str, torch.Tensor]:
        """The buffers themselves that move by a rule and that `state` lacks, as they are not persistent."""


class Whole:
    """Implements `Boundary` for a worker that holds all of the model."""

    def __init__(
        self,
        workload: PipelineAdapter,  # gives the validation batches
        replica: Replica,  # on which they are computed
        total_shards: int,  # of the run
        evaluate: evaluation.Evaluate,  # one of them
    ) -> None:
        self._workload = workload
        self._replica = replica
        self._total_shards = total_shards
        self._evaluate = evaluate

    def digest(self) -> str:
        return model_digest(self._workload.model)

    def digested(self) -> tuple[Mapping[str, torch.Tensor], Set[str]]:
        model = self._workload.model
        return distinct_state(model), {name for name, _ in model.named_parameters()}

    def tensor_digests(self) -> dict[str, str]:
        return tensor_digests(self.state())

    def evaluate(self, shards: Sequence[int], step: int, beat: evaluation.Beat) -> evaluation.Results:
        batches = self._workload.evaluation_batches.of(shards, self._total_shards)
        return evaluation.compute(self._workload, self._replica, batches, self._evaluate, step, beat)

    def begin_save(self, writers: Sequence[int]) -> None:
        pass

    def part(self, writers: Sequence[int]) -> None:
        pass

    def state(self) -> dict[str, torch.Tensor]:
        return distinct_state(self._workload.model)

    def unsaved(self) -> dict[str, torch.Tensor]:
        state, moving = self.state(), self._workload.buffer_rules
        buffers = self._workload.model.named_buffers()
        return {name: buffer.detach() for name, buffer in buffers if name in moving and name not in state}
