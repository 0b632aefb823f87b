"""The table of orders: in which order an epoch visits the training samples.

An order is a function `name(epochs: Epochs, *, option, ...)` that returns an object with `indices(step, shard)`: the samples of
that micro-batch, as indices into the training set, as many as `epochs` gives it rows. In each epoch every sample comes once.
What it returns depends on its arguments alone, so that any worker finds the same at any time.

    shuffled    one permutation of all samples per epoch, held in memory: 8 bytes per sample
    blocks      files in a permuted order, dealt to the shards in runs; blocks of neighbouring files, and the samples of each
                permuted. Nothing is held that grows with the samples, and each shard reads files of its own
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import Field

from orchestrator.sampling.population import Whole
from orchestrator.table import Table

if TYPE_CHECKING:
    import torch

_ROUNDS = 6
_EPOCHS_KEPT = 2  # one may be fetched ahead of the other's end


class Epochs(Protocol):
    """What a run says of its epochs. samples: of the training set."""

    @property
    def seed(self) -> int: ...

    @property
    def samples(self) -> int: ...

    @property
    def shards(self) -> int: ...

    @property
    def files(self) -> Sequence[int] | None:
        """How many samples each file of the training set holds, in order; None where it has no files."""

    def rows(self, step: int, shard: int) -> tuple[int, int, int]:
        """(epoch, first, last): the micro-batch is positions [first, last) of that epoch."""

    def own_rows(self, step: int, shard: int) -> tuple[int, int, int]:
        """(epoch, first, last): it is rows [first, last) of all that this shard has in that epoch."""

    def run(self, epoch: int, shard: int) -> tuple[int, int]:
        """(start, end): a division of the epoch's positions into a run per shard, as long as what it has in that epoch."""

    def permutation(self, epoch: int) -> torch.Tensor:
        """Of all samples, drawn for that epoch."""


class Order(Protocol):
    """What an entry returns."""

    def indices(self, step: int, shard: int) -> list[int]:
        """The samples of micro-batch (step, shard), as indices into the training set; empty when it has none."""


class _Shuffled:
    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs
        self._permutations: dict[int, Any] = {}

    def indices(self, step: int, shard: int) -> list[int]:
        epoch, first, last = self._epochs.rows(step, shard)
        if epoch not in self._permutations:
            self._permutations = {kept: order for kept, order in self._permutations.items() if abs(kept - epoch) == 1}
            self._permutations[epoch] = self._epochs.permutation(epoch)
        found: list[int] = self._permutations[epoch][first:last].tolist()
        return found


class _Blocks:
    """Positions of an epoch are those of its files, one behind the other in a permuted order. A block is so many files of them,
    cut where the run of one shard ends. Source of the permutation: Black and Rogaway, "Ciphers with arbitrary finite domains"
    (2002), section 5: a Feistel network with cycle walking."""

    def __init__(self, epochs: Epochs, files: int, samples: int) -> None:
        import numpy

        self._epochs = epochs
        self._size = self.together = files  # that a shard reads at a time
        self._alike = samples  # of each file, where the training set has none of its own
        lengths = epochs.files
        self._starts = None if lengths is None else numpy.concatenate(([0], numpy.cumsum(lengths))).astype(numpy.int64)
        self._files = -(-epochs.samples // samples) if lengths is None else len(lengths)
        self._ends = functools.lru_cache(_EPOCHS_KEPT)(self._block_ends)

    def indices(self, step: int, shard: int) -> list[int]:
        import numpy

        epoch, first, last = self._epochs.own_rows(step, shard)
        start, end = self._epochs.run(epoch, shard)
        found: list[int] = []
        first, last = start + first, start + last
        ends = self._ends(epoch)
        while first < last:
            block = int(numpy.searchsorted(ends, first, "right"))
            begins = 0 if block == 0 else int(ends[block - 1])
            piece = max(start, begins), min(end, int(ends[block]))
            until = min(last, piece[1])
            found += self._within(epoch, block, begins, piece, numpy.arange(first, until)).tolist()
            first = until
        return found

    def _within(self, epoch: int, block: int, begins: int, piece: tuple[int, int], positions: Whole) -> Whole:
        """The samples at positions of one block, which begins at a position; piece: the part of it that is shuffled."""
        import numpy

        keys = _keys(self._epochs.seed, epoch, piece[0])
        shuffled = piece[0] - begins + permuted(positions - piece[0], piece[1] - piece[0], keys)
        files = self._files_of(epoch, block)
        ends = numpy.cumsum(self._lengths(files))
        nth = numpy.searchsorted(ends, shuffled, "right")
        within = shuffled - numpy.where(nth > 0, ends[nth - 1], 0)
        found: Whole = self._first(files[nth]) + within
        return found

    def _files_of(self, epoch: int, block: int) -> Whole:
        import numpy

        places = numpy.arange(block * self._size, min((block + 1) * self._size, self._files))
        return permuted(places, self._files, _keys(self._epochs.seed, epoch, "files"))

    def _block_ends(self, epoch: int) -> Whole:
        """Positions at which the blocks of an epoch end."""
        import numpy

        order = permuted(numpy.arange(self._files), self._files, _keys(self._epochs.seed, epoch, "files"))
        ends = numpy.cumsum(self._lengths(order))
        last = numpy.arange(self._size - 1, self._files + self._size - 1, self._size).clip(max=self._files - 1)
        kept: Whole = ends[last].copy()
        return kept

    def _first(self, files: Whole) -> Whole:
        found: Whole = files * self._alike if self._starts is None else self._starts[files]
        return found

    def _lengths(self, files: Whole) -> Whole:
        import numpy

        if self._starts is not None:
            found: Whole = self._starts[files + 1] - self._starts[files]
            return found
        return numpy.minimum((files + 1) * self._alike, self._epochs.samples) - files * self._alike


def shuffled(epochs: Epochs) -> Order:
    return _Shuffled(epochs)


def blocks(
    epochs: Epochs,
    *,
    files: Annotated[
        int, Field(ge=1, description="Neighbouring files whose samples are mixed; a shard reads them together.")
    ] = 8,
    samples: Annotated[
        int,
        Field(ge=1, description="Neighbouring samples that are taken for a file, where the training set has no files."),
    ] = 1024,
) -> Order:
    return _Blocks(epochs, files, samples)


ORDERS: Table[Callable[..., Order]] = Table("data.order", {"shuffled": shuffled, "blocks": blocks})


def permuted(positions: Whole, size: int, keys: Any) -> Whole:
    """A permutation of range(size), asked at `positions`, int64. keys: uint64, one per round of the network."""
    import numpy

    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask, shift = numpy.uint64((1 << half) - 1), numpy.uint64(half)
    values = positions.astype(numpy.uint64)
    walking = numpy.ones(len(values), bool)
    while walking.any():
        left, right = values[walking] >> shift, values[walking] & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right + key) & mask)
        values[walking] = (left << shift) | right
        walking[walking] = values[walking] >= size
    return values.astype(numpy.int64)


def _mixed(values: Any) -> Any:
    """Each of 64 bits on its own; arithmetic wraps. Source: Steele, Lea and Flood, "Fast splittable pseudorandom number
    generators" (OOPSLA 2014), figure 17."""
    import numpy

    values = values * numpy.uint64(0x9E3779B97F4A7C15)
    values ^= values >> numpy.uint64(30)
    values *= numpy.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> numpy.uint64(27)
    values *= numpy.uint64(0x94D049BB133111EB)
    return values ^ (values >> numpy.uint64(31))


def _keys(*what: object) -> Any:
    import numpy

    return numpy.frombuffer(hashlib.shake_256(repr(what).encode()).digest(8 * _ROUNDS), "<u8")


def problems(name: str, options: Mapping[str, Any], small: Callable[[], Epochs], steps: int) -> list[str]:
    """What is wrong with an order of the user's project, tried on an epoch of so many steps; at most one sentence."""

    def visited() -> list[list[int]]:
        epochs = small()
        order = ORDERS.build(name, options)(epochs)
        return [order.indices(step, shard) for step in range(steps) for shard in range(epochs.shards)]

    def broken() -> str | None:
        found, epochs = visited(), small()
        rows = [epochs.rows(step, shard) for step in range(steps) for shard in range(epochs.shards)]
        if [len(indices) for indices in found] != [last - first for _, first, last in rows]:
            return "gives micro-batches other numbers of samples than their rows"
        if sorted(index for indices in found for index in indices) != list(range(epochs.samples)):
            return "does not visit each sample once in an epoch"
        return None if visited() == found else "is not pure: asked again it gave other samples"

    return ORDERS.judge(name, broken)
