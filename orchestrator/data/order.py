"""Which samples micro-batch (step, shard) holds: a pure function of seed, sizes, step and shard; never of the workers.

An epoch visits every sample once. Step t takes the next rows, as many as its batch has; the last step of an epoch takes what
is left. A step's rows are dealt to its shards in contiguous runs whose lengths differ by at most one. So a last batch that is
not full is uneven, and shards are empty if it has fewer rows than there are shards.

How many rows a step has is a function of the step (`common.values.Steps`). In which order an epoch visits the samples is a
table (`data/sampling/orders.py`), which asks here for positions.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from orchestrator.common.values import Steps
from orchestrator.numerics import streams


@dataclass(frozen=True)
class Epochs:
    """Epochs of `samples` training samples. batch_size: rows of a step; shards: of the run; files: how many samples each
    file of the training set holds, None where it has no files."""

    seed: int
    samples: int
    batch_size: Steps
    shards: int
    files: Sequence[int] | None = field(default=None, compare=False)

    def steps_of(self, epochs: int) -> int:
        """How many steps the first so many epochs take."""
        epoch = offset = 0
        for first, end, size in self.batch_size.intervals():
            last = self._steps_left(epoch, offset, size, epochs)
            if end is None or first + last <= end:
                return first + last
            epoch, offset = self._after(epoch, offset, end - first, size)
        raise AssertionError("the last stretch has no end")

    @property
    def steps_per_epoch(self) -> int:
        """The steps of the first epoch."""
        return self.steps_of(1)

    def rows(self, step: int, shard: int) -> tuple[int, int, int]:
        """(epoch, first, last): micro-batch (step, shard) is positions [first, last) of that epoch's order."""
        epoch, start, length = self._batch(step)
        return epoch, start + _share(length, shard, self.shards), start + _share(length, shard + 1, self.shards)

    def own_rows(self, step: int, shard: int) -> tuple[int, int, int]:
        """(epoch, first, last): micro-batch (step, shard) is rows [first, last) of all that this shard has in that epoch."""
        epoch = self._batch(step)[0]
        before = 0
        for first, steps, size in _alike(self, epoch):
            own = _share(size, shard + 1, self.shards) - _share(size, shard, self.shards)
            if step < first + steps:
                before += (step - first) * own
                return epoch, before, before + own
            before += steps * own
        raise AssertionError("the epoch ended before the step")

    def run(self, epoch: int, shard: int) -> tuple[int, int]:
        """(start, end): a division of the epoch's positions into a run per shard, as long as what it has in that epoch."""
        alike = _alike(self, epoch)
        start, end = (
            sum(steps * _share(size, each, self.shards) for _, steps, size in alike) for each in (shard, shard + 1)
        )
        return start, end

    def permutation(self, epoch: int) -> torch.Tensor:
        """A permutation of all samples, int64."""
        return streams.permutation(self.seed, "order", epoch, self.samples)

    def _batch(self, step: int) -> tuple[int, int, int]:
        """(epoch, position in it, rows) of a step."""
        epoch = offset = 0
        for first, end, size in self.batch_size.intervals():
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


def _share(rows: int, shard: int, shards: int) -> int:
    """How many of a step's rows the shards before this one have."""
    return rows * shard // shards


@functools.lru_cache(8)
def _alike(epochs: Epochs, epoch: int) -> list[tuple[int, int, int]]:
    """(first step, number of steps, rows of each): the steps of an epoch, those of equal size together."""
    step, left = epochs.steps_of(epoch), epochs.samples
    found = []
    for _, end, size in epochs.batch_size.intervals():
        while left and (end is None or step < end):
            rows = min(size, left)
            steps = left // rows if end is None else min(left // rows, end - step)
            found.append((step, steps, rows))
            step, left = step + steps, left - steps * rows
    return found


class EvaluationBatches(Sequence[range]):
    """The validation set in order, in batches of `rows`; a function of settings only (rule A6). None of them is kept."""

    def __init__(self, samples: int, rows: int) -> None:
        self._samples = samples
        self._starts = range(0, samples, rows)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[each] for each in range(len(self))[number]]
        start = self._starts[number]
        return range(start, min(start + self._starts.step, self._samples))

    def of(self, shards: Iterable[int], total: int) -> Iterator[int]:
        """The numbers of those that these shards evaluate, of so many shards in all, ascending."""
        return heapq.merge(*(range(shard, len(self), total) for shard in set(shards)))
