"""The contribution of a shard to a step, and how one is computed.

`Contributing` is the interface of gradients (`shard_gradients.py`) and of local steps (`local_steps.py`). Each returns a loss,
a weight and tensors of the layout, or None if a shard has nothing to contribute, and keeps its state in `ShardStates`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import torch

from orchestrator.numerics.digests import update_in_place
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.shard_states import ShardStates


class Contribution(NamedTuple):
    """The contribution of one shard. loss, weight: the mean over the micro-batch, and what it counts; tensors on the device if
    nobody has looked at them yet; tensors: in the order of the layout, None for a parameter without gradient."""

    loss: float | torch.Tensor
    weight: float | torch.Tensor
    tensors: Sequence[torch.Tensor | None]


class Contributing(Protocol):
    """Computes the contributions of the hosted shards to a step. workload: gives the micro-batches; keeps_state: whether
    shards have any; counters_agree: whether every shard has to leave the same counters, or else the largest are taken."""

    workload: PipelineAdapter
    keeps_state: bool
    counters_agree: bool
    states: ShardStates

    def step_assignment(self, step: int, assigned: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        """The shards of each worker in a step: those that it hosts, or an assignment that all workers make alike."""

    def plan(self, step: int, shards: Sequence[int]) -> None:
        """Prepare for these shards, which are computed next."""

    def compute(self, step: int, shard: int, *, late: bool = False) -> Contribution | None:
        """The contribution of a shard. late: the weight may be a tensor on the device, which nobody has
        read. A contribution of weight 0 counts as none."""

    def is_looked_at(self, step: int) -> bool:
        """Whether a micro-batch of this step is computed once more (`second_computation.py`), so that the step cannot be
        replayed as a whole."""

    def named(self, step: int, shard: int) -> str:
        """The names of its samples for a message, as of `MicroBatches.named`; empty if there are too many."""


def digest_of(
    computed: Contribution, counters: Sequence[int] = (), buffers: Iterable[tuple[str, torch.Tensor]] = ()
) -> bytes:
    """A digest of a contribution, bit by bit, and of what its shard left in counters and buffers."""
    numbers = f"{float(computed.loss).hex()} {float(computed.weight).hex()} {[*counters]}"
    digest = hashlib.sha256(numbers.encode())
    tensors = ((str(index), tensor) for index, tensor in enumerate(computed.tensors) if tensor is not None)
    update_in_place(digest, (*buffers, *tensors))
    return digest.digest()
