"""The update of a worker's replica by a summed gradient: transforms after the sum, learning rate, optimizer, buffers.
It is the same at every worker."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence

import torch

from orchestrator.common import injection
from orchestrator.config.plan import Update
from orchestrator.errors import OrchestratorError
from orchestrator.optim import optimizers, schedules
from orchestrator.optim.chunked_step import Pieces
from orchestrator.optim.clipping import Clipping
from orchestrator.optim.transforms import Chain, State, Transform
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.model.sharded_optimizer import ShardedOptimizer


class Updater:
    """Applies summed gradients to a replica. Built while the optimizer still has the rates that it was made with;
    started once the length of the run is known."""

    def __init__(
        self,
        workload: PipelineAdapter,  # has the rate, and the pipeline's own way to take the optimizer's step
        replica: Replica,  # whose parameters are updated
        optimizer: torch.optim.Optimizer,  # with the rates that it was made with
        update: Update,  # schedule, warm-up, scaling and clipping of the plan
        # instead of that of `update`, by the norm of a gradient of which this is a part; None: that of `update`
        clipping: Transform | None = None,
    ) -> None:
        self._workload, self._calls = workload, workload.optimizer_calls
        self._replica = replica
        self.optimizer = optimizer
        self._pieces = Pieces(optimizer)
        self._schedule, self._warmup, self._scaling = update.schedule, update.warmup, update.scaling
        self._rates = rates_of(optimizer)
        self._options = optimizers.group_options(optimizer)
        if update.clip is not None:
            clipping = clipping or Clipping(update.clip)
        self._after = Chain(*([] if clipping is None else [clipping]))
        self.state = self._after.init(replica.parameters)
        self.divided = ShardedOptimizer(optimizer, replica) if update.sharded else None
        self._made: State | None = None
        self._rate: Callable[[int, int], float] = lambda _step, _reductions: 1.0

    def start(self, steps: int) -> None:
        """Set the length of the run."""
        schedule = self._schedule
        epoch = self._workload.samples.order.steps_per_epoch
        if self._calls.has_rate:
            self._rate = lambda step, _reductions: self._calls.rate(step)
        else:
            factor, warmup = schedules.build(schedule.name, schedule.options), self._warmup
            scale = (lambda _step: 1.0) if self._scaling is None else self._scaling.at
            self._rate = lambda step, reductions: (
                factor(schedules.Moment(step, steps, warmup, reductions, epoch)) * scale(step)
            )
        self._rate = functools.lru_cache(maxsize=1)(self._rate)  # the loss reads it, and then the update

    def renew_options(self) -> None:
        """As they were when the optimizer was built."""
        for group, own in zip(self.optimizer.param_groups, self._options, strict=True):
            group.update(own)

    @contextlib.contextmanager
    def shown(self, step: int, reductions: int) -> Iterator[None]:
        """Within this, the optimizer has the rates of that step, for a loss that reads them, as in a loop of torch. Its update
        sets them for good, so a step that fails leaves those of the step before."""
        groups = self.optimizer.param_groups
        before = [group["lr"] for group in groups]
        with contextlib.suppress(OrchestratorError):  # it is raised by the update, where all members are
            factor = self._rate(step, reductions)
            for group, rate in zip(groups, self._rates, strict=True):
                group["lr"] = optimizers.rate_like(group["lr"], rate * factor)
        try:
            yield
        finally:
            for group, own in zip(groups, before, strict=False):
                group["lr"] = own

    def make(
        self,
        step: int,
        reductions: int,
        agreed: Sequence[torch.Tensor | None],
        result: torch.Tensor,
    ) -> None:
        """Make this worker's part of what `apply` is to take, with the same arguments, if the workers of a host divide the
        update. Nothing of a step is changed before `apply`."""
        self._made = None
        if self.divided is None or not self.divided.divides:
            return
        self._replica.forget()
        for parameter in self._replica.parameters:
            parameter.grad = None  # that of the last shard
        gradients, following = self._after.update(agreed[: len(self._replica.parameters)], self.state)
        set_rates(self.optimizer, self._rates, self._rate(step, reductions))
        self.divided.make(step, gradients, lambda go: self._calls.optimize(step, self.optimizer, result, go))
        self._made = following

    def apply(
        self,
        step: int,
        reductions: int,
        agreed: Sequence[torch.Tensor | None],
        counters: Sequence[int],
        joined: Sequence[torch.Tensor],
        result: torch.Tensor,
    ) -> None:
        """Apply a summed gradient. agreed: views of `result`, in the order of the layout, None where no shard had anything
        (rule A7); counters, joined: the values of these buffers; reductions: how often the plateau schedule has lowered the
        rate."""
        count = len(self._replica.parameters)
        # Before the optimizer's step, which may read them: as the last shard left them they differ between workers (rule A8).
        self._replica.adopt(agreed[count:], counters, joined)
        if self._made is None:
            self.move(step, reductions, agreed[:count], result)
        else:
            assert self.divided is not None
            self.divided.commit()
            self.state, self._made = self._made, None
        self._replica.begin_step()

    def move(self, step: int, reductions: int, gradients: Sequence[torch.Tensor | None], result: torch.Tensor) -> None:
        """The parameters alone: the optimizer's step, with gradients that are views of `result`."""
        self._replica.forget()
        gradients, self.state = self._after.update(gradients, self.state)
        for parameter, gradient in zip(self._replica.parameters, gradients, strict=True):
            parameter.grad = gradient
        set_rates(self.optimizer, self._rates, self._rate(step, reductions))
        self._calls.optimize(step, self.optimizer, result, self._pieces.step)
        injection.at("parameters", step, self._replica.parameters)


def set_rates(optimizer: torch.optim.Optimizer, rates: list[float], factor: float) -> None:
    """Give each parameter group its base rate times the factor."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        optimizers.set_rate(group, rate * factor)


def rates_of(optimizer: torch.optim.Optimizer) -> list[float]:
    """The base rates: those that the optimizer was built with."""
    return [float(group["lr"]) for group in optimizer.param_groups]
