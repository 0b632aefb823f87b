"""A worker's part in a step whose contributions are clipped (`privacy`): each is put on the quantization grid by itself, and
all count the same. Before the sum members are told only whether something failed: no loss, weight or magnitude of a single
shard.

    contribute   for each shard, and each client that it plays: compute, clip, truncate, add; shard 0's host adds the noise
    total        the sum over all workers (masked where that is wanted), divided by how many contribute on average
    line         the mean loss; with noise, which hides no loss, a keyed hash of it

The noise of a step is a function of the run's keys and of the step, so a step that is repeated after a loss releases the same
bytes and costs no epsilon.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy
import torch
from numpy.typing import NDArray

from orchestrator.comm.collectives import Exchange
from orchestrator.comm.topologies.schedule import Schedule
from orchestrator.config.plan import Privacy
from orchestrator.errors import Inconsistent, NonFinite, OrchestratorError, PipelineRaised
from orchestrator.numerics import exact
from orchestrator.numerics.grid import Grid
from orchestrator.numerics.layout import Layout
from orchestrator.numerics.staging import HostTransfer
from orchestrator.optim import optimizer_state
from orchestrator.optim.privacy.keys import Keys
from orchestrator.optim.privacy.quantization_grid import QuantizationGrid, loss_on_grid, mean_loss
from orchestrator.optim.transforms import State
from orchestrator.records import trace
from orchestrator.worker.member.generation import ProcessServices
from orchestrator.worker.model.output_checks import NON_FINITE_REMEDY
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.model.updater import Updater
from orchestrator.worker.step.contribution import Contributing
from orchestrator.worker.step.grid_carrier import GridCarrier
from orchestrator.worker.step.local_trainer import LocalTrainer
from orchestrator.worker.step.summation import Tensors
from orchestrator.worker.step_report import Consensus, StepReport

_LOSS_KEY: Final = "losses"


class ClippedSum:
    """Implements `summation.Summation`. result: of the layout's size."""

    most_waiting = 1
    late: None = None

    def __init__(self, privacy: Privacy, carrier: GridCarrier, layout: Layout, result: torch.Tensor) -> None:
        self._privacy = privacy
        self._carrier = carrier
        self._layout = layout
        self._grid = QuantizationGrid(privacy.clipping_norm, layout)
        self.result = result
        self.replicated: State = {}
        self.loss = 0.0
        self.keys: Keys | None = None

    @property
    def held_bytes(self) -> int:
        own = self._carrier.own
        return 0 if exact.in_host_memory(own) else own.nbytes

    def suit(self, schedule: Schedule, rank: int) -> None:
        self._carrier.suit(schedule, rank)

    def clear(self) -> None:
        self._carrier.clear()

    def add(self, shard: int, tensors: Tensors, weight: float, grid: Grid) -> None:  # noqa: ARG002
        """Raises NonFinite."""
        if not self._grid.add(tensors, self._carrier.own):
            raise NonFinite(
                f"the contribution of shard {shard} is not finite", NON_FINITE_REMEDY, code="loss.contribution"
            )

    def add_loss(self, loss: float) -> None:
        self._carrier.losses[0] += loss_on_grid(loss)
        self._carrier.losses[1] += 1

    def add_noise(self, step: int) -> None:
        """Add the noise of a step as one more contribution. Raises Inconsistent without keys."""
        if self._privacy.noise:
            self._grid.add_noise(self._privacy.noise, self._known_keys().stream("noise", step), self._carrier.own)

    def told_loss(self, step: int) -> float | str:
        """The loss of the step that was added up last, as the trace has it: with noise only a keyed hash."""
        if not self._privacy.noise:
            return self.loss
        return trace.hidden(self._known_keys().hash(_LOSS_KEY, struct.pack("<qd", step, self.loss)))

    def complete(self, total_weight: float, *, alone: bool) -> NDArray[numpy.int64]:  # noqa: ARG002
        """Returns no rows: magnitudes are not told."""
        return numpy.empty((0, len(self._layout.slots)), numpy.int64)

    def watch(self) -> None:
        """Does nothing: the settings refuse checks of clipped contributions (`config.settings.rules.checks`)."""

    def intact(self) -> bool:
        return True

    def total(self, exchange: Exchange, step: int, attempt: int, consensus: Consensus) -> int:  # noqa: ARG002
        """Raises PipelineRaised if no shard had any samples and there is no noise."""
        total, losses, count = self._carrier.carry(exchange, step, attempt)
        if not count and not self._privacy.noise:
            raise PipelineRaised(
                f"step {step}: no shard has any samples",
                "a step needs something to learn from",
                code="data.no-samples-in-step",
            )
        self._grid.mean(total, float(self._privacy.expected), self.result)
        self.loss = mean_loss(losses, count)
        return exact.wrap(exact.fingerprint_of(self.result, 0))

    def commit(self) -> None:
        pass

    def _known_keys(self) -> Keys:
        if self.keys is None:
            raise Inconsistent(
                "noise is wanted, and there is no key for it",
                "this is a fault of orchestrator",
                code="privacy.no-key-for-noise",
            )
        return self.keys


class ClippedTrainer(LocalTrainer):
    """Implements `lockstep.Member`."""

    def __init__(
        self,
        gradients: Contributing,  # clips and contributes those of the shards
        replica: Replica,  # whose gradient is computed
        updater: Updater,  # applies the sum
        summation: ClippedSum,  # of clipped contributions
        host_transfer: HostTransfer,  # between the device and the memory that is exchanged
        services: ProcessServices,  # of the member's process
    ) -> None:
        super().__init__(gradients, replica, updater, summation, host_transfer, services)
        self._workload = gradients.workload
        self._clipped = summation
        self._counters: list[int] = []

    def unlock(self, keys: Keys | None) -> None:
        """The keys of the run; the same in each generation."""
        if keys is not None:
            self._clipped.keys = keys
            self._workload.samples.unlock(keys)

    def contribute(self, step: int, attempt: int, grid: Grid) -> StepReport:  # noqa: ARG002
        self._clipped.clear()
        self._options = optimizer_state.options(self._updater.optimizer)
        self._fault = None
        self._counters = self._replica.counter_values()
        for shard in self._shards:
            try:
                for each in self._workload.samples.sampled_clients(step, shard):
                    self.beat(step, shard)
                    self._services.writer.copied(0)
                    self._add_clipped(step, each, grid)
            except OrchestratorError as error:
                self._fault = shard, error
                break
        if self._shards and (self._fault is None or isinstance(self._fault[1], NonFinite)):
            self._fault = self._changed_outside() or self._fault
        if self._fault is not None:
            return StepReport(failing_shard=self._fault[0])
        if 0 in self._shards:
            self._clipped.add_noise(step)
        present = [True] * len(self._replica.layout.slots)
        return StepReport(present=present, counters=self._counters)

    def line(self, step: int, consensus: Consensus, fingerprint: int) -> trace.Line:  # noqa: ARG002
        return trace.line(
            step, self._clipped.told_loss(step), fingerprint, absent=self._workload.samples.attendance.absent(step)
        )

    def beat(self, step: int, shard: int) -> None:
        """Crash records and the driver see shards, and not which client a shard plays."""
        self._services.heartbeat.beat("compute", step, shard)

    def _add_clipped(self, step: int, each: int, grid: Grid) -> None:
        self._gradients.plan(step, (each,))
        computed = self._compute(step, each, 0)
        names = self._replica.counter_names()
        for name, before, after in zip(names, self._counters, self._replica.counter_values(), strict=True):
            if before != after:
                raise PipelineRaised(
                    f"the integer buffer {name!r} of the model changed while a batch was computed",
                    "with privacy.clipping_norm only gradients are added up: keep counters out of the model",
                    code="privacy.integer-buffer",
                )
        if computed is not None:
            shard = self._workload.samples.shard_of(step, each)
            self._clipped.add(shard, computed.tensors, float(computed.weight), grid)
            self._clipped.add_loss(float(computed.loss))
            self._replica.forget()
