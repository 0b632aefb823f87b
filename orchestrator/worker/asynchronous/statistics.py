"""Running statistics and counters of replicas that run free: each shard's own; at a sync barrier the exact mean, and the
maximum.

Updates of statistics could not be added up as those of parameters are: summed with a delay of 8 rounds they drove a running
variance to -0.32 (measured). The mean is a sum of integers over all shards, on a grid from magnitudes that all agree on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy
import torch

from orchestrator.errors import NonFinite
from orchestrator.numerics.fixed_point import divided, exponent_for
from orchestrator.numerics.grid import ABSENT
from orchestrator.worker.model.output_checks import NON_FINITE_REMEDY
from orchestrator.worker.model.replica import Replica

Buffers = Sequence[Sequence[torch.Tensor]]  # of each hosted shard: statistics, then counters


class Statistics:
    """The statistics of one replica's model, and where they lie in the layout."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._slots = replica.layout.slots[len(replica.parameters) :]

    @property
    def start(self) -> int:
        """The offset of the first one in the layout; elements before it are of parameters."""
        return self._slots[0].offset if self._slots else self._replica.layout.size

    def magnitudes(self, hosted: Buffers) -> list[int]:
        """Per tensor of the layout, the bits of its largest value among the hosted shards; ABSENT for parameters. Raises
        NonFinite."""
        found = [ABSENT] * len(self._replica.parameters)
        for i, slot in enumerate(self._slots):
            values = [float(buffers[i].abs().amax()) for buffers in hosted if slot.elements]
            if not all(map(math.isfinite, values)):
                raise NonFinite(f"the statistic {slot.name} is not finite", NON_FINITE_REMEDY, code="loss.statistic")
            found.append(int(numpy.float64(max(values, default=0.0)).view(numpy.int64)))
        return found

    def counters(self, hosted: Buffers) -> list[int]:
        """The largest value of each counter among the hosted shards; none without any."""
        skipped = len(self._slots)
        values = [[v for counter in buffers[skipped:] for v in counter.reshape(-1).tolist()] for buffers in hosted]
        return [max(each) for each in zip(*values, strict=True)]

    def contribute(self, hosted: Buffers, magnitudes: Sequence[int], contribution: torch.Tensor) -> None:
        """Add them to what this worker puts into a sum of integers of the layout's size."""
        for i, exponent in enumerate(self._exponents(magnitudes)):
            slot = self._slots[i]
            view = contribution[slot.offset : slot.offset + slot.elements]
            for buffers in hosted:
                flat = buffers[i].as_strided((slot.elements,), (1,), buffers[i].storage_offset())
                view += torch.round(self._replica.staging.to_sums(flat).double().mul_(2.0**-exponent)).long()

    def means(self, magnitudes: Sequence[int], summed: torch.Tensor, shards: int) -> list[torch.Tensor | None]:
        """The means over so many shards, float32 and in the shapes of the layout."""
        found: list[torch.Tensor | None] = []
        for slot, exponent in zip(self._slots, self._exponents(magnitudes), strict=True):
            total = summed[slot.offset : slot.offset + slot.elements].double().mul_(2.0**exponent)
            mean = divided(total, shards).float()
            found.append(mean.as_strided(slot.shape, slot.stride))
        return found

    def _exponents(self, magnitudes: Sequence[int]) -> list[int]:
        largest = numpy.array(magnitudes[len(self._replica.parameters) :], numpy.int64).view(numpy.float64)
        return [exponent_for(each) for each in largest.tolist()]
