"""Which samples micro-batch (step, shard) holds where shards draw from parts of their own, or by weights: a pure function of
seed, parts, batch size, step and shard.

Every step is full: its rows are dealt to the shards evenly, in numbers that differ by at most one, whatever the sizes of their
parts. An epoch is as many steps as it takes to draw as many rows as there are training samples.

    without weights   each shard goes through its own part in passes, each in an order drawn from (seed, pass, shard); a pass
                      may begin and end within a micro-batch. So the samples of a small part come more often than those of a
                      large one, and an epoch is one pass of every shard where the parts are equal.
    by weights        each row is drawn with replacement, in proportion to the weights, from (seed, step, shard)

A shard without samples has no rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch

from orchestrator.common.values import Steps
from orchestrator.data.division import SampleSubset
from orchestrator.numerics import streams


@dataclass(frozen=True)
class Drawn:
    """How many rows each shard draws. samples: of the training set; batch_size: rows of a step, over all shards."""

    samples: int
    batch_size: Steps
    shards: int

    def steps_of(self, epochs: int) -> int:
        """How many steps the first so many epochs take."""
        missing = epochs * self.samples
        for first, end, size in self.batch_size.intervals():
            steps = -(-missing // size)
            if end is None or first + steps <= end:
                return first + steps
            missing -= (end - first) * size
        raise AssertionError("the last stretch has no end")

    @property
    def steps_per_epoch(self) -> int:
        """The steps of the first epoch."""
        return self.steps_of(1)

    def rows(self, step: int, shard: int) -> tuple[int, int]:
        """(first, last): micro-batch (step, shard) is rows [first, last) of all that this shard draws in the run."""
        first = 0
        for begin, end, size in self.batch_size.intervals():
            own = size * (shard + 1) // self.shards - size * shard // self.shards
            if end is None or step < end:
                first += (step - begin) * own
                return first, first + own
            first += (end - begin) * own
        raise AssertionError("the last stretch has no end")


class PassSampler:
    """Goes through each part in passes; keeps two passes of each shard that is asked for, since one may be fetched ahead."""

    def __init__(self, seed: int, order: Drawn, parts: Sequence[SampleSubset]) -> None:
        self._seed = seed
        self._order = order
        self._parts = parts
        self._passes: dict[int, dict[int, torch.Tensor]] = {}

    def indices(self, step: int, shard: int) -> list[int]:
        """The samples of micro-batch (step, shard), as indices into the dataset; empty when the shard owns none."""
        samples = self._parts[shard].samples
        first, last = self._order.rows(step, shard)
        found: list[int] = []
        while len(samples) and first < last:
            number, start = divmod(first, len(samples))
            piece = self._pass(number, shard)[start : start + last - first]
            found += samples[piece.numpy()].tolist()
            first += len(piece)
        return found

    def _pass(self, number: int, shard: int) -> torch.Tensor:
        passes = self._passes.setdefault(shard, {})
        if number not in passes:
            samples = len(self._parts[shard].samples)
            self._passes[shard] = passes = {kept: order for kept, order in passes.items() if abs(kept - number) == 1}
            passes[number] = streams.permutation(self._seed, "order of a part", number, samples, shard)
        return passes[number]


class WeightedSampler:
    """Draws with replacement. parts: with weights, or empty."""

    def __init__(self, seed: int, order: Drawn, parts: Sequence[SampleSubset]) -> None:
        self._seed = seed
        self._order = order
        self._parts = parts
        self._sums: dict[int, numpy.ndarray] = {}  # running sums of the weights, by part

    def indices(self, step: int, shard: int) -> list[int]:
        """The samples of micro-batch (step, shard), as indices into the dataset; empty when the shard owns none."""
        part = self._parts[shard]
        if part.weights is None:
            return []
        if id(part) not in self._sums:
            self._sums[id(part)] = numpy.cumsum(part.weights)
        sums, (first, last) = self._sums[id(part)], self._order.rows(step, shard)
        found: list[int] = part.samples[by_weight(sums, last - first, self._seed, step, shard)].tolist()
        return found


def by_weight(sums: numpy.ndarray, number: int, seed: int, step: int, shard: int) -> numpy.ndarray:
    """So many positions, drawn with replacement. sums: running sums of the weights."""
    stream = numpy.random.RandomState(streams.seed_of(seed, "sampling", step, shard))
    found: numpy.ndarray = numpy.searchsorted(sums[:-1], stream.random_sample(number) * sums[-1], side="right")
    return found
