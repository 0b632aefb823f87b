"""What a shard contributes to a step: the gradient of its micro-batch, after the transforms before the sum.

This is the interface for other contributions (local steps, compression): each returns a loss, a weight and tensors of
the layout, or None where a shard has nothing to contribute, and keeps its state in `ShardStates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from orchestrator.engine.compute.replica import Replica
from orchestrator.engine.compute.shard_states import ShardStates
from orchestrator.engine.compute.workload import Workload
from orchestrator.pipeline import naming
from orchestrator.updates.transforms import Chain


class Contribution(NamedTuple):
    """What one shard contributes. loss: the mean over the micro-batch; tensors: in the order of the layout, None for a
    parameter without gradient."""

    loss: float
    weight: float
    tensors: Sequence[torch.Tensor | None]


class ShardGradients:
    """before: applied to a shard's gradients, with a state per shard. states: of the shards; keeps_state: whether they have
    any, from `before` or from what becomes of the contribution."""

    def __init__(
        self, workload: Workload, replica: Replica, before: Chain, states: ShardStates, *, keeps_state: bool
    ) -> None:
        self._workload = workload
        self._replica = replica
        self._before = before
        self.keeps_state = keeps_state
        self.states = states

    def plan(self, step: int, shards: Sequence[int]) -> None:
        """Prepare for these micro-batches, which are computed next."""
        self.states.discard()
        self._workload.plan(step, shards)

    def compute(self, step: int, shard: int) -> Contribution | None:
        """The contribution of a shard. Raises PipelineRaised, NonFinite."""
        self._replica.begin_shard()
        computed = self._workload.loss(step, shard)
        self._replica.check_shard()
        if computed is None:
            if self.keeps_state:
                self.states.stage(shard, {})
            return None
        tensors = self._replica.contribution()
        if self._before:
            count = len(self._replica.parameters)
            with naming("update() of the contribution"):
                gradients, state = self._before.update(tensors[:count], self.states.of(shard))
            self.states.stage(shard, state)
            tensors = [*gradients, *tensors[count:]]
        return Contribution(*computed, tensors)
