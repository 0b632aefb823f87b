"""Which samples micro-batch (step, shard) holds: a pure function of seed, sizes, step and shard; never of the workers.

An epoch visits every sample once, in an order drawn from (seed, epoch). Step t takes the next rows, as many as its batch has;
the last step of an epoch takes what is left. A step's samples are dealt to its shards in contiguous runs whose lengths differ
by at most one, so a last batch that is not full is uneven, and shards are empty when it has fewer samples than there are
shards.

How many rows a step has is a function of the step (`values.Steps`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from orchestrator.numerics import streams
from orchestrator.values import Steps


@dataclass(frozen=True)
class Order:
    """The order of `samples` training samples. batch_size: rows of a step; shards: of the run."""

    seed: int
    samples: int
    batch_size: Steps
    shards: int

    def steps_of(self, epochs: int) -> int:
        """How many steps the first so many epochs take."""
        epoch = offset = 0
        for first, end, size in self.batch_size.stretches():
            last = self._steps_left(epoch, offset, size, epochs)
            if end is None or first + last <= end:
                return first + last
            epoch, offset = self._after(epoch, offset, end - first, size)
        raise AssertionError("the last stretch has no end")

    @property
    def steps_per_epoch(self) -> int:
        """Of the first epoch."""
        return self.steps_of(1)

    def rows(self, step: int, shard: int) -> tuple[int, int, int]:
        """(epoch, first, last): micro-batch (step, shard) is positions [first, last) of that epoch's order."""
        epoch, start, length = self._batch(step)
        return epoch, start + length * shard // self.shards, start + length * (shard + 1) // self.shards

    def _batch(self, step: int) -> tuple[int, int, int]:
        """(epoch, position in it, rows) of a step."""
        epoch = offset = 0
        for first, end, size in self.batch_size.stretches():
            steps = (step if end is None else min(step, end)) - first
            epoch, offset = self._after(epoch, offset, steps, size)
            if end is None or step < end:
                return epoch, offset, min(size, self.samples - offset)
        raise AssertionError("the last stretch has no end")

    def _after(self, epoch: int, offset: int, steps: int, size: int) -> tuple[int, int]:
        """(epoch, position) so many steps of this size later."""
        left = self._steps_left(epoch, offset, size, epoch + 1)
        if steps < left:
            return epoch, offset + steps * size
        epochs, steps = divmod(steps - left, -(-self.samples // size))
        return epoch + 1 + epochs, steps * size

    def _steps_left(self, epoch: int, offset: int, size: int, epochs: int) -> int:
        """Steps of this size from here to the end of so many epochs."""
        return -(-(self.samples - offset) // size) + (epochs - epoch - 1) * -(-self.samples // size)


class Sampler:
    """Looks positions up in the order of their epoch; keeps two epochs, since one may be fetched ahead of the other's end."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self._permutations: dict[int, torch.Tensor] = {}

    def indices(self, step: int, shard: int) -> list[int]:
        """The samples of micro-batch (step, shard), as indices into the dataset; empty when it has none."""
        epoch, first, last = self.order.rows(step, shard)
        if epoch not in self._permutations:
            self._permutations = {kept: order for kept, order in self._permutations.items() if abs(kept - epoch) == 1}
            self._permutations[epoch] = streams.permutation(self.order.seed, "order", epoch, self.order.samples)
        indices: list[int] = self._permutations[epoch][first:last].tolist()
        return indices


def evaluation_batches(samples: int, rows: int) -> list[range]:
    """The validation set in order, in batches of `rows`; a function of settings only (rule A6)."""
    return [range(start, min(start + rows, samples)) for start in range(0, samples, rows)]
