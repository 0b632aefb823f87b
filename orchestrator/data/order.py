"""Which samples micro-batch (step, shard) holds: a pure function of seed, sizes, step and shard; never of the workers.

An epoch visits every sample once, in an order drawn from (seed, epoch). Step t takes the next `batch_size` of them; the last
step of an epoch takes what is left. A step's samples are dealt to the shards in contiguous runs whose lengths differ by at
most one, so a last batch that is not full is uneven, and shards are empty when it has fewer samples than there are shards.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from orchestrator.numerics import streams


@dataclass(frozen=True)
class Order:
    """The order of `samples` training samples in steps of `batch_size` over `shards` shards."""

    seed: int
    samples: int
    batch_size: int
    shards: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.samples // self.batch_size)

    def rows(self, step: int, shard: int) -> tuple[int, int, int]:
        """(epoch, first, last): micro-batch (step, shard) is positions [first, last) of that epoch's order."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        start = batch * self.batch_size
        length = min(self.batch_size, self.samples - start)
        return epoch, start + length * shard // self.shards, start + length * (shard + 1) // self.shards


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
