"""The contribution of a shard to a round: how far its own steps took the parameters, as start - end, in the place of a
gradient.

    x          the parameters at the start of the round, the same for all shards
    y = x      then for each local step, numbered through the run (`TrainingSamples.local_steps`):
    g          the gradient of the micro-batch at y, plus proximal_mu * (y - x), clipped
    y          after a step of the local optimizer, which is new in each round
    x - y      the contribution, in float32; running statistics as they are after the last step

The parameters are then x again, to the bit: the next shard starts from them. The exact mean of the contributions takes the
place of a gradient, so the run's optimizer is the server's. With lr 1 `sgd` sets the parameters to the mean of the shards'
(federated averaging), with momentum it is DiLoCo's outer step; `adam` is FedAdam. A shard keeps nothing from round to round,
but what a compression dropped and where its stream of samples is.

If shards differ in their number of local steps, each round assigns them to the workers so that all workers end together.

A shard may have fewer local steps than others, so counters of batches may differ between shards; the largest is taken.

Source: McMahan et al. (2017); Li et al., "Federated Optimization in Heterogeneous Networks" (FedProx, 2020); Reddi et al.,
"Adaptive Federated Optimization" (2021); Douillard et al., "DiLoCo" (2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from orchestrator.config.plan import Local
from orchestrator.controller.shard_assignment import assign_by_size
from orchestrator.optim.clipping import clip
from orchestrator.optim.transforms import State
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.step.contribution import Contribution
from orchestrator.worker.step.second_computation import SecondComputation
from orchestrator.worker.step.shard_gradients import settle, states_of, stream_row


class LocalSteps:
    """Implements `contribution.Contributing`."""

    counters_agree = False

    def __init__(
        self,
        workload: PipelineAdapter,  # gives the micro-batches
        replica: Replica,  # on which local steps are taken
        second: SecondComputation,  # of the first micro-batch of a round
        local: Local,  # how many local steps, and by what optimizer
        # called before each local step with (step, shard), the parameters being those of the round's start; may raise
        beat: Callable[[int, int], None],
        # waits until no checkpoint is being copied, since local steps move the parameters; may raise
        await_copied: Callable[[], None],
        residuals: Callable[[], State] = dict,  # what a shard keeps for a compression before the first step
    ) -> None:
        self.workload = workload
        self._replica = replica
        self._second = second
        self._local = local
        self._beat = beat
        self._await_copied = await_copied
        self.keeps_state = bool(residuals())
        self.states = states_of(workload.batches.streams, residuals)
        self._start = torch.empty_like(replica.flat)
        self._starts = [slot.view(self._start) for slot in replica.layout.slots[: len(replica.parameters)]]

    def step_assignment(self, step: int, assigned: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        """An assignment by each shard's number of local steps in this round, which every worker knows. Shards that keep
        state, or that are read at their site only, stay with their hosts."""
        samples = self.workload.samples
        if self.keeps_state or samples.attendance.is_pinned:
            return assigned
        sizes = [len(samples.local_steps(step, shard)) for shard in range(samples.order.shards)]
        return assigned if len(set(sizes)) == 1 else assign_by_size(sizes, len(assigned))

    def plan(self, step: int, shards: Sequence[int]) -> None:  # noqa: ARG002
        """Plans no micro-batches: those of a whole round may be many, and are planned with their shard."""
        self.workload.batches.host(shards)
        self.states.discard()

    def compute(self, step: int, shard: int, *, late: bool = False) -> Contribution | None:  # noqa: ARG002
        """Raises PipelineRaised, NonFinite, and what `beat` and `await_copied` raise."""
        replica = self._replica
        self._await_copied()
        replica.begin_shard()
        self._start.copy_(replica.flat)
        settle(self.workload.batches.streams, self.states, step, shard)
        try:
            trained = self._trained(step, shard)
            if self.keeps_state:
                self.states.stage(shard, stream_row(self.workload.batches.streams, shard))
            return trained
        finally:
            replica.flat.copy_(self._start)
            replica.moved()

    def is_looked_at(self, step: int) -> bool:
        return self._second.is_due(step)

    def named(self, step: int, shard: int) -> str:  # noqa: ARG002
        """Names none: a round has many samples."""
        return ""

    def _trained(self, step: int, shard: int) -> Contribution | None:
        """Take the local steps of a shard, and leave the parameters as they are after the last one. Returns None if all its
        micro-batches are empty."""
        replica, clocks = self._replica, self.workload.samples.local_steps(step, shard)
        plan = partial(self.workload.batches.plan, clocks, [shard])
        plan()
        expected = self._second.expected(step, clocks[0], shard, plan) if clocks else None
        make = self.workload.optimizer_calls.local_optimizer
        optimizer = make(self._local.optimizer, replica.parameters, step, shard)
        means: list[tuple[float, float]] = []
        present = [False] * len(replica.parameters)
        for clock in clocks:
            self._beat(step, shard)
            for parameter in replica.parameters:
                parameter.grad = None
            computed = self.workload.recorded_loss(clock, shard)
            replica.check_shard(buffers=not self.workload.replayed)
            replica.check_step()
            if clock == clocks[0]:
                self._second.compare(expected, step, computed, replica.gradients)
            if computed is None:
                continue
            means.append(computed)
            gradients = self._gradients()
            present = [was or gradient is not None for was, gradient in zip(present, gradients, strict=True)]
            for parameter, gradient in zip(replica.parameters, gradients, strict=True):
                parameter.grad = gradient
            self.workload.optimizer_calls.optimize_locally(clock, shard, optimizer, replayed=self.workload.replayed)
            replica.check_frozen()
            replica.moved()
        if not means:
            return None
        weight = math.fsum(weight for _, weight in means)
        loss = math.fsum(loss * weight for loss, weight in means) / weight
        return Contribution(loss, 1.0 if self._local.uniform else weight, self._difference(present))

    def _gradients(self) -> Sequence[torch.Tensor | None]:
        """The gradients of the present micro-batch, with the proximal term, clipped."""
        gradients = self._replica.gradients()
        if self._local.proximal_mu:
            both = zip(gradients, self._replica.parameters, self._starts, strict=True)
            gradients = [
                None if gradient is None else gradient + self._local.proximal_mu * (parameter.detach() - start)
                for gradient, parameter, start in both
            ]
        return gradients if self._local.clip is None else clip(gradients, self._local.clip)

    def _difference(self, present: Sequence[bool]) -> list[torch.Tensor | None]:
        """The contribution, in memory of its own since contributions wait to be added up; None for a parameter that never had
        a gradient."""
        replica = self._replica
        difference = self._start - replica.flat
        slots = replica.layout.slots[: len(replica.parameters)]
        moved = [slot.view(difference) if had else None for slot, had in zip(slots, present, strict=True)]
        return [*moved, *(statistic.clone() for statistic in replica.statistics)]
