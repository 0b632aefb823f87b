"""Which samples micro-batch (step, shard) holds: a pure function of seed, sizes, step and shard; never of the workers.

An epoch visits every sample once, in an order drawn from (seed, epoch). Step t takes the next rows, as many as its batch has;
the last step of an epoch takes what is left. A step's samples are dealt to its shards in contiguous runs whose lengths differ
by at most one, so a last batch that is not full is uneven, and shards are empty when it has fewer samples than there are
shards.

Rows and shards of a step are functions of the step (`values.Steps`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from orchestrator.numerics import streams
from orchestrator.values import Steps


@dataclass(frozen=True)
class Order:
    """The order of `samples` training samples. batch_size: rows of a step; shards: of the run; active: those among which a
    step's rows are dealt, the first so many; None: all."""

    seed: int
    samples: int
    batch_size: int | Steps
    shards: int
    active: Steps | None = None

    def steps_of(self, epochs: int) -> int:
        """How many steps the first so many epochs take."""
        epoch = offset = 0
        for first, end, size in self._sizes():
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
        shards = self.shards if self.active is None else self.active.at(step)
        nth, following = min(shard, shards), min(shard + 1, shards)
        return epoch, start + length * nth // shards, start + length * following // shards

    def _batch(self, step: int) -> tuple[int, int, int]:
        """(epoch, position in it, rows) of a step."""
        epoch = offset = 0
        for first, end, size in self._sizes():
            steps = (step if end is None else min(step, end)) - first
            epoch, offset = self._after(epoch, offset, steps, size)
            if end is None or step < end:
                return epoch, offset, min(size, self.samples - offset)
        raise AssertionError("the last stretch has no end")

    def _sizes(self) -> Iterator[tuple[int, int | None, int]]:
        sizes = self.batch_size
        return (Steps.constant(sizes) if isinstance(sizes, int) else sizes).stretches()

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
