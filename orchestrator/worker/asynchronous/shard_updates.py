"""One shard's update: its own optimizer takes a step from what its host has read; the step, as integers, is the update.

    p  = float32(X + residual)                   X: the replica as it has been read, residual: of the significance filter
    p' = the shard's optimizer after the gradient of micro-batch (clock, shard)
    u  = rint((p' - p) / V / lsb)                so that V shards move as far as one optimizer would

Running statistics and counters are those of the shard while replicas run free; at a sync barrier everybody takes their exact
mean. The learning rate is that of the step (sum of the clocks read) // V: a slow shard's own clock would leave it in the middle
of the schedule. Clipping is of each shard's gradient. A micro-batch that is empty, or whose weight is zero, is an update of
zero.

Source: workers that step by themselves, as in Ho et al. (NIPS 2013) and Hsieh et al., "Gaia" (NSDI 2017), there by plain SGD.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import torch

from orchestrator.errors import NonFinite
from orchestrator.numerics import foreach
from orchestrator.numerics.fixed_point import HOST, LIMIT, FixedPoint, Updating, name_of, overflows
from orchestrator.optim.transforms import State
from orchestrator.worker.asynchronous.shard_optimizers import ShardOptimizers
from orchestrator.worker.model.output_checks import NON_FINITE_REMEDY
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.model.updater import Updater
from orchestrator.worker.step.second_computation import SecondComputation

_FLOOR = 1e-2  # magnitudes below it count as this much when a change is called significant
_LENT = 1 << 22  # elements; what smaller models take stays, which costs less than to take it again


class Reading(NamedTuple):
    """The clocks and counts that a micro-batch is computed from. clock: of its shard; total: the sum of the clocks that were
    read; steps: of the run; reductions: how often the plateau schedule has lowered the rate."""

    clock: int
    total: int
    steps: int
    reductions: int


def require_range(replica: Replica, parameters: torch.Tensor, limit: int = LIMIT) -> None:
    """Raises NonFinite if these parameters, given as integers, have left their range."""
    if overflows(parameters, limit):
        name = name_of(replica.layout, int(parameters.abs().argmax()))
        raise NonFinite(
            f"the parameter {name} has left the range of its numbers",
            "lower optimizer.lr",
            code="loss.parameter-range",
        )


class _AfterPass(NamedTuple):
    """The memory that an update takes, and no pass."""

    update: torch.Tensor
    gradient: torch.Tensor
    views: Sequence[torch.Tensor]  # of the gradient, one for each parameter

    @classmethod
    def of(cls, replica: Replica) -> Self:
        gradient = torch.zeros_like(replica.flat)
        views = [slot.view(gradient) for slot in replica.layout.slots[: len(replica.parameters)]]
        return cls(replica.staging.integers(replica.layout.size), gradient, views)


class ShardUpdates:
    """Computes the updates of the hosted shards, one after the other."""

    def __init__(
        self,
        workload: PipelineAdapter,  # gives the micro-batches and the loss
        replica: Replica,  # on which an update is computed
        second: SecondComputation,  # of micro-batches
        updater: Updater,  # applies a gradient to it
        shards: int,  # how many add up to one model
        threshold: float,  # of the significance filter; 0: none
        updating: Updating = HOST,  # where updates are added
    ) -> None:
        self._updating = updating
        self._workload = workload
        self._replica = replica
        self._second = second
        self._updater = updater
        self._shards = shards
        self._threshold = threshold
        self.optimizers = ShardOptimizers(updater.optimizer, replica.parameters)
        size, staging = replica.layout.size, replica.staging
        self._before = staging.flat(size)
        self._after = staging.reading(replica.flat)
        # A pass on a GPU gets the memory meanwhile, since torch's allocator gives out again what it has.
        self._lends = size >= _LENT and staging.integers(0).device.type == "cuda"
        self._memory = None if self._lends else _AfterPass.of(replica)
        self._buffers: dict[int, list[torch.Tensor]] = {}
        self._residuals: dict[int, torch.Tensor] = {}
        self._fixed = FixedPoint(())

    def begin(
        self, fixed: FixedPoint, rows: Mapping[int, State], buffers: Mapping[int, list[torch.Tensor]] | None = None
    ) -> None:
        """Replicas run free from here: the shards of these rows are hosted. buffers: statistics, then counters, of each; all
        have the replica's where there are none."""
        self._fixed = fixed
        self._lend()
        self.optimizers.load(rows)
        self._buffers = dict(buffers) if buffers else {shard: self._replica.buffers() for shard in rows}
        self._residuals = {}

    def compute(self, shard: int, x: torch.Tensor, reading: Reading) -> tuple[float | None, torch.Tensor]:
        """Loss and update of the shard's next micro-batch, computed from `x`; None for one that is empty. The update may be
        used until the next call. Raises PipelineRaised, NonFinite."""
        self._lend()
        require_range(self._replica, x)  # until the rest it could leave its range and come back from the other side
        self.show(x, self._residuals.get(shard))
        self._replica.set_buffers(self._buffers[shard])
        self._replica.begin_step()
        self.optimizers.begin(shard)  # a loss may read what it remembers, as in lockstep
        try:
            with self._updater.shown(self._lockstep_step(reading), reading.reductions):
                computed = self._computed(shard, reading.clock)
            memory = self._memory = self._memory or _AfterPass.of(self._replica)
            if computed is None:
                return None, self._filtered(shard, reading.clock, x, memory.update.zero_())
            self._step(shard, reading, memory)
        finally:
            self.optimizers.end(shard)
        self._replica.check_frozen()
        self._buffers[shard] = self._replica.buffers()
        after = self._after()
        if not self._updating.differ(self._fixed.pieces, after, self._before, self._shards, memory.update):
            self._refuse(shard, reading.clock, after)
        return computed[0], self._filtered(shard, reading.clock, x, memory.update)

    def _computed(self, shard: int, clock: int) -> tuple[float, float] | None:
        """Mean loss and weight of a micro-batch, whose gradients are in the model then; None for one that is empty."""
        expected = self._second.expected(clock, clock, shard)
        self._replica.begin_shard()
        computed = self._workload.recorded_loss(clock, shard)
        self._replica.check_shard(buffers=not self._workload.replayed)
        self._replica.check_step()
        self._second.compare(expected, clock, computed, self._replica.gradients)
        return computed

    def show(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> None:
        """The replica has these parameters, given as integers, from here on. residual: is added to them."""
        self._fixed.values(x, self._before, residual)
        self._replica.flat.copy_(self._before)

    def residual(self) -> torch.Tensor | None:
        """The sum of what the filter has held back of all hosted shards, which it forgets now; None if there is none."""
        held, self._residuals = list(self._residuals.values()), {}
        for each in held[1:]:
            held[0].add_(each)
        return held[0] if held else None

    def buffers(self) -> Sequence[Sequence[torch.Tensor]]:
        """Statistics, then counters, of each hosted shard."""
        return [self._buffers[shard] for shard in sorted(self._buffers)]

    def buffers_of(self, shard: int) -> Sequence[torch.Tensor]:
        """The same of one."""
        return self._buffers[shard]

    def _lend(self) -> None:
        if self._lends:
            self._memory = None

    def _step(self, shard: int, reading: Reading, memory: _AfterPass) -> None:
        """The shard's optimizer takes a step, with gradients that are views of one buffer, as in lockstep."""
        where = f"micro-batch {reading.clock} of shard {shard}"
        gradients = self._replica.contribution()[: len(self._replica.parameters)]
        views = [None if gradient is None else view for view, gradient in zip(memory.views, gradients, strict=True)]
        foreach.copy(
            [view for view in views if view is not None], [gradient for gradient in gradients if gradient is not None]
        )
        del gradients  # the optimizer's step needs memory, too
        if not bool(torch.stack(torch.aminmax(memory.gradient)).isfinite().all()):  # without a copy; NaN is passed on
            element = int((~torch.isfinite(memory.gradient)).nonzero()[0])
            memory.gradient.zero_()
            name = name_of(self._replica.layout, element)
            named = self._workload.batches.named(reading.clock, shard)
            raise NonFinite(
                f"the gradient of {name} is not finite in {where}{named}", NON_FINITE_REMEDY, code="loss.gradient"
            )
        self._updater.move(self._lockstep_step(reading), reading.reductions, views, memory.gradient)

    def _lockstep_step(self, reading: Reading) -> int:
        """The step whose rates are those of this update."""
        return min(reading.total // self._shards, reading.steps - 1)

    def _filtered(self, shard: int, clock: int, x: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        """The significant part of the update and of what was held back; the rest is held back (Gaia, section 3.2)."""
        if not self._threshold:
            return update
        waiting = self._residuals.get(shard)
        if waiting is None:
            waiting = self._residuals[shard] = torch.zeros_like(update)
        threshold = self._threshold / math.sqrt(clock + 1)
        for part, lsb in self._fixed.parts(update):
            least = x[part].abs().double().mul_(lsb).clamp_(min=_FLOOR).mul_(threshold / lsb)
            waiting[part] += update[part]
            update[part] = torch.where(waiting[part].abs().double() > least, waiting[part], 0)
            waiting[part] -= update[part]
        return update

    def _refuse(self, shard: int, clock: int, after: torch.Tensor) -> None:
        strange = (~torch.isfinite(after)).nonzero()
        element = int(strange[0]) if len(strange) else int((after - self._before).abs().argmax())
        name = name_of(self._replica.layout, element)
        raise NonFinite(
            f"the step of the optimizer takes {name} out of range in micro-batch {clock} of shard {shard}",
            NON_FINITE_REMEDY,
            code="loss.step-range",
        )
