"""The update of a worker's replica by a summed gradient: transforms after the sum, learning rate, optimizer, buffers. The
same at every worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from orchestrator.engine.compute.replica import Replica
from orchestrator.engine.compute.shard_states import fitted
from orchestrator.engine.compute.workload import Workload
from orchestrator.plan import Update
from orchestrator.updates import optimizers, schedules
from orchestrator.updates.clipping import Clipping
from orchestrator.updates.transforms import Chain, State


class Updater:
    """Built when the optimizer still has the rates that it was made with; started once the length of the run is known."""

    def __init__(self, workload: Workload, replica: Replica, optimizer: torch.optim.Optimizer, update: Update) -> None:
        self._workload = workload
        self._replica = replica
        self.optimizer = optimizer
        self._schedule = update.schedule
        self._rates = schedules.rates_of(optimizer)
        self._after = Chain(*([] if update.clip is None else [Clipping(update.clip)]))
        self.state = self._after.init(replica.parameters)
        self._rate: Callable[[int, int], float] = lambda _step, _reductions: 1.0

    def start(self, steps: int) -> None:
        """The run has this length."""
        workload, schedule = self._workload, self._schedule
        epoch = workload.order.steps_per_epoch
        if workload.has_rate:
            self._rate = lambda step, _reductions: workload.rate(step)
        else:
            self._rate = lambda step, reductions: schedules.factor(schedule, step, steps, reductions, epoch=epoch)

    def fitted(self, state: State) -> State:
        """A state of the transforms from elsewhere. Raises Inconsistent when it is none of theirs."""
        return fitted("of the transforms after the sum", state, self._after.init(self._replica.parameters))

    def options(self) -> list[dict[str, object]]:
        """Of the optimizer, to see whether somebody changes them."""
        return optimizers.options(self.optimizer)

    def apply(
        self,
        step: int,
        reductions: int,
        agreed: Sequence[torch.Tensor | None],
        counters: Sequence[int],
        result: torch.Tensor,
    ) -> None:
        """agreed: views of `result`, in the order of the layout, None where no shard had anything; counters: the integer
        buffers' values; reductions: of the plateau schedule so far."""
        self._replica.forget()
        count = len(self._replica.parameters)
        gradients, self.state = self._after.update(agreed[:count], self.state)
        for parameter, gradient in zip(self._replica.parameters, gradients, strict=True):
            parameter.grad = gradient
        schedules.set_rates(self.optimizer, self._rates, self._rate(step, reductions))
        self._workload.optimize(step, self.optimizer, result)
        self._replica.adopt(agreed[count:], counters)
