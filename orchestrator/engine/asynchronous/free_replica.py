"""One worker's replica between two rests: parameters as integers, to which its own and others' updates are added in any order.

    begin      after a rest, which left parameters in float32, equal everywhere
    own        an update of a hosted shard
    other      a delta of another worker
    ledger     the fingerprint of all that was added is that of what came out of it
    adopt      the sum of everybody's updates, at the rest
    give_up    back to the last rest, to the bit: the sprint has failed

Parameters in float32 are the whole state at a rest, as in lockstep, so checkpoints and state transfers are the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy
import torch

from orchestrator.engine.asynchronous.shard_updates import Reading, ShardUpdates, fingerprint
from orchestrator.engine.compute.replica import Replica
from orchestrator.engine.compute.shard_states import ShardStates
from orchestrator.engine.compute.workload import NON_FINITE_REMEDY
from orchestrator.engine.exchange.collectives import Memory
from orchestrator.engine.member.generation import ProcessServices
from orchestrator.errors import Inconsistent, NonFinite
from orchestrator.numerics.exact import wrap
from orchestrator.numerics.fixed_point import FixedPoint, exponent_for, name_of, overflows
from orchestrator.numerics.grid import ABSENT
from orchestrator.updates.transforms import State


class FreeReplica:
    """A replica that runs free between rests, and the states of its shards. shards: those that are hosted."""

    def __init__(
        self, replica: Replica, updates: ShardUpdates, states: ShardStates, memory: Memory, services: ProcessServices
    ) -> None:
        self.replica = replica
        self.shards: tuple[int, ...] = ()
        self._updates = updates
        self._states = states
        self._memory = memory
        self._services = services
        size = replica.layout.size
        self._x, self._base = torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.int64)
        self._start = torch.zeros(size, dtype=torch.float32)
        self._fixed = FixedPoint(())
        self._ledger = 0

    def begin(self, inherited: Mapping[int, State] = MappingProxyType({})) -> None:
        """Replicas run free from here. inherited: what these hosted shards go on with, in place of what they keep. Raises
        CalledOff."""
        self._services.await_copied()
        self._states.discard()
        replica = self.replica
        self._start.copy_(replica.flat)
        self._buffers = replica.buffers()
        self._fixed = FixedPoint.fitting(replica.layout, self._start, len(replica.parameters))
        self._fixed.integers(self._start, self._base)
        self._x.copy_(self._base)
        self._memory.contribution.zero_()
        self._ledger = fingerprint(self._base)
        self._updates.begin(self._fixed, {**self.rows(), **inherited})

    def compute(self, shard: int, reading: Reading, x: torch.Tensor | None = None) -> tuple[float | None, torch.Tensor]:
        """Loss and update of the shard's next micro-batch, read from `x` or, without one, from this replica."""
        self._services.heartbeat.beat("compute", reading.clock, shard)
        return self._updates.compute(shard, self._x if x is None else x, reading)

    def own(self, update: torch.Tensor) -> int:
        """Add an update of a hosted shard; returns its fingerprint."""
        printed = fingerprint(update)
        self._memory.contribution += update
        self.other(update, printed)
        return printed

    def other(self, delta: torch.Tensor, printed: int, at: slice = slice(None)) -> None:
        """Add what another worker has sent; `printed` with its first slice, and 0 with the others."""
        self._x[at] += delta
        self._ledger = wrap(self._ledger + printed)

    @property
    def size(self) -> int:
        """Elements of an update."""
        return self._x.numel()

    def rows(self) -> dict[int, State]:
        """What the hosted shards keep."""
        return {shard: self._states.of(shard) for shard in self.shards}

    def start(self) -> torch.Tensor:
        """A copy of the parameters at the last rest, as integers."""
        return self._base.clone()

    def check_ledger(self) -> None:
        """Raises Inconsistent unless this replica is the sum of what was added to it: at the rest all replicas are made equal,
        which would repair a lost or doubled update in silence."""
        if fingerprint(self._x) != self._ledger:
            raise Inconsistent(
                "a replica is not the sum of the updates that it has applied", "this is a fault of orchestrator"
            )

    def magnitudes(self) -> list[int]:
        """Per tensor of the layout, the bits of its largest value among the hosted shards; ABSENT for parameters. Raises
        NonFinite."""
        count = len(self.replica.statistics)
        found = [ABSENT] * len(self.replica.parameters)
        for i in range(count):
            values = [float(buffers[i].abs().amax()) for buffers in self._updates.buffers() if buffers[i].numel()]
            if not all(map(math.isfinite, values)):
                name = self.replica.layout.slots[len(found)].name
                raise NonFinite(f"the statistic {name} is not finite", NON_FINITE_REMEDY)
            found.append(int(numpy.float64(max(values, default=0.0)).view(numpy.int64)))
        return found

    def counters(self) -> list[int]:
        """The largest value of each counter among the hosted shards; none without any."""
        skipped = len(self.replica.statistics)
        values = [[v for c in buffers[skipped:] for v in c.reshape(-1).tolist()] for buffers in self._updates.buffers()]
        return [max(each) for each in zip(*values, strict=True)]

    def contribute(self, magnitudes: Sequence[int]) -> None:
        """Complete what this worker puts into the sum of the rest: what the filter held back, and the statistics. From here on
        others may complete the rest without this worker, so what its shards keep is staged."""
        for shard in self.shards:
            self._states.stage(shard, self._updates.optimizers.row(shard))
        contribution, residual = self._memory.contribution, self._updates.residual()
        if residual is not None:
            contribution += residual
        self._statistics = self._fixed_statistics(magnitudes)
        for i, (slot, exponent) in enumerate(self._statistics):
            view = contribution[slot.start : slot.stop]
            for buffers in self._updates.buffers():
                view += torch.round(self._flat(buffers[i], i).double().mul_(2.0**-exponent)).long()

    def adopt(self, shards: int, counters: Sequence[int]) -> int:
        """Take the sum over; returns the fingerprint of the parameters. shards: of the run. Raises NonFinite."""
        replica, summed = self.replica, self._memory.result
        end = self._statistics[0][0].start if self._statistics else summed.numel()
        self._x.copy_(self._base)
        self._x[:end] += summed[:end]
        if overflows(self._x):
            name = name_of(replica.layout, int(self._x.abs().argmax()))
            raise NonFinite(f"the parameter {name} has left the range of its numbers", "lower optimizer.lr")
        self._fixed.values(self._x, replica.flat)
        means: list[torch.Tensor | None] = []
        for i, (slot, exponent) in enumerate(self._statistics):
            mean = summed[slot.start : slot.stop].double().mul_(2.0**exponent).div_(shards).float()
            means.append(self._shaped(mean, i))
        replica.adopt(means, counters)
        self._states.commit()
        return fingerprint(self._x)

    def give_up(self) -> None:
        """Back to the last rest."""
        self.replica.flat.copy_(self._start)
        self.replica.set_buffers(self._buffers)
        self.replica.begin_step()
        self.replica.begin_shard()

    def _fixed_statistics(self, magnitudes: Sequence[int]) -> list[tuple[slice, int]]:
        """Place and exponent of each statistic, for magnitudes that all agree on."""
        first = len(self.replica.parameters)
        slots = self.replica.layout.slots[first:]
        largest = numpy.array(magnitudes[first:], numpy.int64).view(numpy.float64).tolist()
        return [
            (slice(slot.offset, slot.offset + slot.elements), exponent_for(most))
            for slot, most in zip(slots, largest, strict=True)
        ]

    def _flat(self, statistic: torch.Tensor, i: int) -> torch.Tensor:
        """The elements of a statistic as they lie in the layout."""
        slot = self.replica.layout.slots[len(self.replica.parameters) + i]
        return statistic.as_strided((slot.elements,), (1,), statistic.storage_offset())

    def _shaped(self, flat: torch.Tensor, i: int) -> torch.Tensor:
        slot = self.replica.layout.slots[len(self.replica.parameters) + i]
        return flat.as_strided(slot.shape, slot.stride)
