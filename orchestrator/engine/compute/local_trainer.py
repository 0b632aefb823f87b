"""A worker's part in a lockstep step: compute the hosted shards onto the grid, then take the summed gradient over."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy
import torch
from numpy.typing import NDArray

from orchestrator.engine.compute.replica import Replica
from orchestrator.engine.compute.workload import NON_FINITE_REMEDY, Workload
from orchestrator.engine.exchange.collectives import Memory
from orchestrator.engine.exchange.step_report import Consensus, Requests, StepReport
from orchestrator.engine.member.generation import ProcessServices
from orchestrator.errors import NonFinite, OrchestratorError, PipelineRaised
from orchestrator.numerics.exact import Accumulator
from orchestrator.numerics.grid import ABSENT, INFINITE, Grid
from orchestrator.numerics.staging import HostTransfer
from orchestrator.updates import optimizers
from orchestrator.updates.clipping import clip
from orchestrator.updates.rates import set_rates

Gradients = Sequence[torch.Tensor | None]


class LocalTrainer:
    """Hosts the shards that `take_on` gives it, others in each generation. rates: the base learning rates; rate: the factor on
    them at a step; requests: what to ask of the others in the present step."""

    def __init__(
        self,
        workload: Workload,
        replica: Replica,
        optimizer: torch.optim.Optimizer,
        memory: Memory,
        host_transfer: HostTransfer,
        *,
        exact: bool,
        clip_norm: float | None,
        rates: Sequence[float],
        rate: Callable[[int], float],
        requests: Callable[[], Requests],
        services: ProcessServices,
    ) -> None:
        self._workload = workload
        self._replica = replica
        self._optimizer = optimizer
        self._accumulator = Accumulator(replica.layout, memory.contribution, exact=exact)
        self._memory = memory
        self._host_transfer = host_transfer
        self._clip_norm = clip_norm
        self._rate = rate
        self._rates = list(rates)
        self._requests = requests
        self._services = services
        self._repeated = False
        self.take_on(())

    def take_on(self, shards: Sequence[int], *, alone: bool = False) -> None:
        """From now on these, starting with a new step. alone: they are all, and there is no other member."""
        self._shards = tuple(shards)
        self._alone = alone
        self._fault: tuple[int, OrchestratorError] | None = None
        self._kept: tuple[Gradients, float, StepReport] | None = None

    def contribute(self, step: int, attempt: int, grid: Grid) -> StepReport:
        if attempt > 0 and self._kept is not None and self._repeated:
            return self._contribute_kept(grid)
        # The first repetition is computed in full by everybody, for that exposes a pipeline that keeps state (rule B4).
        self._repeated = self._repeated or attempt > 0
        self._kept = None
        self._accumulator.clear()
        self._workload.plan(step, self._shards)
        self._options = optimizers.options(self._optimizer)
        tally = _Tally(self._replica)
        fault: tuple[int, OrchestratorError] | None = None
        for shard in self._shards:
            self._services.heartbeat.beat("compute", step, shard)
            self._services.writer.copied(0)  # if so, it is written from here on, and not from the update
            try:
                computed = self._compute(step, shard, len(tally.shards) % self._accumulator.most_waiting)
                if computed is None:
                    continue
                loss, weight, gradients = computed
                self._accumulator.add(gradients, weight, grid)
                tally.add(shard, loss, weight, self._replica.present(gradients))
            except OrchestratorError as error:
                fault = (shard, error)
                break
        self._fault = self._settle(step, tally) or fault  # what was added came before what failed
        if self._shards and (self._fault is None or isinstance(self._fault[1], NonFinite)):
            self._fault = self._disturbance() or self._fault
        if self._fault is not None:
            return StepReport(failing_shard=self._fault[0])
        if len(self._shards) == 1 and tally.shards:
            self._kept = (gradients, weight, tally.step_report(Requests()))
        return tally.step_report(self._requests())

    def fault(self, shard: int) -> Exception | None:
        return self._fault[1] if self._fault is not None and self._fault[0] == shard else None

    def apply(self, step: int, consensus: Consensus) -> None:
        """May raise CalledOff before it changes anything, and not after."""
        self._services.heartbeat.beat("update", step)
        self._services.await_copied()
        self._replica.forget()
        self._host_transfer.back()
        results = zip(consensus.present, self._host_transfer.result, strict=True)
        agreed = [result if present else None for present, result in results]
        gradients = agreed[: len(self._replica.parameters)]
        clipped = gradients if self._clip_norm is None else clip(gradients, self._clip_norm)
        for parameter, gradient in zip(self._replica.parameters, clipped, strict=True):
            parameter.grad = gradient
        set_rates(self._optimizer, self._rates, self._rate(step))
        self._workload.optimize(step, self._optimizer, self._memory.result)
        self._replica.adopt(agreed[len(self._replica.parameters) :], consensus.counters)

    def _contribute_kept(self, grid: Grid) -> StepReport:
        """A worker with one shard need not compute it again: only the grid has changed (rule A4)."""
        assert self._kept is not None
        gradients, weight, step_report = self._kept
        self._accumulator.clear()
        self._accumulator.add(gradients, weight, grid)
        self._complete(weight)
        return replace(step_report, requests=self._requests())

    def _compute(self, step: int, shard: int, nth: int) -> tuple[float, float, Gradients] | None:
        """Loss, weight and contributions of one shard; None when it has nothing to contribute. nth: among those that wait to be
        added up, which have to stay as they are."""
        self._replica.begin_shard()
        computed = self._workload.loss(step, shard)
        self._replica.check_shard()
        if computed is None:
            return None
        loss, weight = computed
        return loss, weight, self._host_transfer.out(self._replica.contribution(), nth)

    def _disturbance(self) -> tuple[int, OrchestratorError] | None:
        """What the user's code changed while the shards were computed, though only the optimizer's step may change it; told of
        the last shard."""
        try:
            self._replica.check_step()
            optimizers.check_unchanged(self._optimizer, self._options)
        except PipelineRaised as error:
            return self._shards[-1], error
        return None

    def _settle(self, step: int, tally: _Tally) -> tuple[int, OrchestratorError] | None:
        """Complete the sum and hand the magnitudes to the tally; returns the first shard with one that is not finite."""
        magnitudes = self._complete(tally.total_weight)
        for nth, i in numpy.argwhere(magnitudes >= INFINITE):
            shard, name = tally.shards[nth], self._replica.layout.slots[i].name
            what = f"gradient of {name}" if i < len(self._replica.parameters) else f"statistic {name}"
            return shard, NonFinite(f"the {what} is not finite at step {step}, shard {shard}", NON_FINITE_REMEDY)
        tally.magnitudes = magnitudes.max(0, initial=ABSENT).tolist()
        return None

    def _complete(self, total_weight: float) -> NDArray[numpy.int64]:
        """The sum of the hosted shards, and all of it where nobody else has any; returns what `settle` does."""
        alone = (total_weight, self._memory.result) if self._alone else None
        magnitudes = self._accumulator.settle(alone)
        self._memory.finished = self._accumulator.finished
        return magnitudes


class _Tally:
    """What the hosted shards of one attempt add up to, apart from the gradient itself."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.magnitudes: Sequence[int] = ()
        self._present: list[Sequence[bool]] = []
        self._weights: dict[int, float] = {}
        self._losses: dict[int, float] = {}
        self._counters: list[int] | None = None

    @property
    def shards(self) -> list[int]:
        """Those added, in order."""
        return list(self._weights)

    @property
    def total_weight(self) -> float:
        return math.fsum(self._weights.values())

    def add(self, shard: int, loss: float, weight: float, present: Sequence[bool]) -> None:
        self._present.append(present)
        self._weights[shard] = weight
        self._losses[shard] = loss
        counters = self._replica.counter_values()
        if self._counters is not None and counters != self._counters:
            name = next(
                n for n, a, b in zip(self._replica.counter_names(), counters, self._counters, strict=True) if a != b
            )
            raise PipelineRaised(f"the shards left different values in the integer buffer {name!r}")
        self._counters = counters

    def step_report(self, requests: Requests) -> StepReport:
        return StepReport(
            requests=requests,
            magnitudes=self.magnitudes,
            present=[any(shards) for shards in zip(*self._present, strict=True)],
            weights=self._weights,
            losses=self._losses,
            counters=self._counters,
        )
