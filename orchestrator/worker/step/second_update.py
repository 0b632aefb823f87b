"""The optimizer's step is taken twice now and then, the second time behind another micro-batch.

An optimizer may read what loss(), a hook or a layer has left in an object: the last loss, activations, a count of tokens.
Workers have computed other shards last, so replicas would part, and a worker alone would get what follows from its last shard.
Only a class that is not torch's may do so. On buffers with a rule all have agreed before the optimizer's step.

Tried in host memory alone. A worker with one shard in a step has no other to compute.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from orchestrator.errors import Inconsistent, OrchestratorError
from orchestrator.numerics.digests import prints_of
from orchestrator.optim import optimizers
from orchestrator.worker.between_steps.run_state import RunState
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.model.updater import Updater
from orchestrator.worker.step.second_computation import is_scheduled

_MOST: Final = 2**24  # elements of a model, which is copied with what the optimizer keeps


class SecondUpdate:
    """A worker has one if it holds the whole model and computes one gradient of a shard in a step."""

    def __init__(self, workload: PipelineAdapter, replica: Replica, updater: Updater) -> None:
        self._workload, self._replica, self._updater = workload, replica, updater
        self._tensors = [*workload.model.parameters(), *workload.model.buffers()]
        batches, size = workload.batches, sum(each.numel() for each in self._tensors)
        is_read_anew = batches.streams is None and not batches.is_live
        is_small = size <= _MOST and all(each.is_cpu for each in self._tensors)
        self._is_tried = is_read_anew and is_small and not optimizers.is_of_torch(updater.optimizer)

    def apply(self, state: RunState, computed: Sequence[int], apply: Callable[[], None]) -> None:
        """Apply the update of the step after this state. computed: the shards that this worker has computed for it, in order.
        Raises what `apply` does before it changes anything, and Inconsistent."""
        step = state.steps
        other = self._other(step, computed)
        if other is None:
            apply()
            return
        self._replica.begin_shard()
        put_back = self._remembered()
        apply()
        found = prints_of(self._tensors)
        put_back()
        with self._updater.shown(step, state.reductions):
            self._compute(step, other)
        apply()
        if prints_of(self._tensors) != found:
            raise Inconsistent(
                f"step {step}: the optimizer's update came out differently behind another micro-batch, so it follows from what "
                "loss(), a hook or a layer left in an object; each worker has computed another shard last",
                "let step() follow from gradients, parameters, its own state and buffers of the model alone: what shards are "
                "to tell it is a buffer with a rule in buffers(), such as their mean",
                code="optimizer.follows-batch",
            )

    def _other(self, step: int, computed: Sequence[int]) -> int | None:
        """A shard that was not the last one, where the update of this step is tried."""
        if not (self._is_tried and is_scheduled(step)):
            return None
        return next((shard for shard in computed[:-1] if self._workload.batches.rows(step, shard)), None)

    def _compute(self, step: int, shard: int) -> None:
        self._workload.batches.plan([step], (shard,))
        self._replica.begin_shard()
        try:
            with contextlib.suppress(OrchestratorError):  # it has been computed once without
                self._workload.loss(step, shard)
        finally:
            self._replica.begin_shard()

    def _remembered(self) -> Callable[[], None]:
        """Puts parameters, buffers and what the optimizer keeps back as they are now."""
        updater, optimizer = self._updater, self._updater.optimizer
        tensors = [_kept(each.detach()) for each in self._tensors]
        state = [(parameter, _kept(entry)) for parameter, entry in optimizer.state.items()]
        groups = [
            {key: _kept(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups
        ]
        after = updater.state

        def put_back() -> None:
            for renew in tensors:
                renew()
            for parameter in optimizer.state.keys() - {parameter for parameter, _ in state}:
                del optimizer.state[parameter]
            for parameter, renew in state:
                optimizer.state[parameter] = renew()
            for group, options in zip(optimizer.param_groups, groups, strict=True):
                for key in group.keys() - options.keys() - {"params"}:
                    del group[key]
                group.update((key, renew()) for key, renew in options.items())
            updater.state = after
            self._replica.begin_step()

        return put_back


def _kept(value: Any) -> Callable[[], Any]:
    """Gives the same object, with what is in it now."""
    content: Any = None
    if isinstance(value, torch.Tensor):
        content = value.detach().clone()
    elif isinstance(value, dict):
        content = [(key, _kept(item)) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        content = [_kept(item) for item in value]

    def put_back() -> Any:
        if isinstance(value, torch.Tensor):
            value.data.copy_(content)
        elif isinstance(value, dict):
            value.clear()
            value.update((key, kept()) for key, kept in content)
        elif isinstance(value, (list, tuple)):
            items = [kept() for kept in content]
            if isinstance(value, list):
                value[:] = items
        return value

    return put_back
