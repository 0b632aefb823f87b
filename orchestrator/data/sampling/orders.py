"""The table of orders: in which order an epoch visits the training samples.

An order is a function `name(epochs: Epochs, *, option, ...)` that returns an object with `indices(step, shard)`: the samples
of that micro-batch, as indices into the training set, as many as `epochs` gives it rows. In each epoch every sample comes
once. Its result depends on its arguments alone, so that any worker finds the same at any time.

    shuffled    one permutation of all samples per epoch, held in memory: 8 bytes per sample
    blocks      files in a permuted order, dealt to the shards in runs; blocks of neighbouring files, and the samples of each
                permuted. Nothing is held that grows with the samples, only with the files that the training set names, and
                each shard reads files of its own
    sequential  that of the training set, the same in each epoch
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol

from pydantic import Field

from orchestrator.common.registry import Table
from orchestrator.data.sampling.population import Whole

if TYPE_CHECKING:
    import torch

_ROUNDS = 6
_BYTES = 8  # of an index
COMPUTED = (
    "set data.order=blocks: which samples come next is computed, and nothing is held for each of them. It is another order, so "
    "the result is another one, too"
)
_EPOCHS_KEPT = 2  # one may be fetched ahead of the other's end


class Epochs(Protocol):
    """The facts of a run's epochs. samples: of the training set."""

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
        """A permutation of all samples, drawn for that epoch."""


class Order(Protocol):
    """The result of an entry."""

    def indices(self, step: int, shard: int) -> list[int]:
        """The samples of micro-batch (step, shard), as indices into the training set; empty when it has none."""


class _Shuffled:
    """An order that is drawn anew for each epoch. held_bytes: at least so many are held from the first micro-batch on."""

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs
        self._permutations: dict[int, Any] = {}
        self.held_bytes = _BYTES * epochs.samples

    def indices(self, step: int, shard: int) -> list[int]:
        epoch, first, last = self._epochs.rows(step, shard)
        if epoch not in self._permutations:
            self._permutations = {kept: order for kept, order in self._permutations.items() if abs(kept - epoch) == 1}
            self._permutations[epoch] = self._epochs.permutation(epoch)
        found: list[int] = self._permutations[epoch][first:last].tolist()
        return found


class _Sequential:
    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs

    def indices(self, step: int, shard: int) -> list[int]:
        _, first, last = self._epochs.rows(step, shard)
        return list(range(first, last))


class _Block(NamedTuple):
    """Which one, and its positions [begins, ends) of an epoch."""

    number: int
    begins: int
    ends: int


class _Files(Protocol):
    """Those of a training set. count: of them."""

    count: int

    def first(self, files: Whole) -> Whole:
        """The first sample of each."""

    def lengths(self, files: Whole) -> Whole:
        """The samples of each."""

    def block(self, epoch: int, position: int) -> _Block:
        """The one that holds this position."""


class _Named:
    """Files that the training set names. lengths: samples of each; size: files of a block; keys: of the permutation of files in
    an epoch."""

    def __init__(self, lengths: Sequence[int], size: int, keys: Callable[[int], Any]) -> None:
        import numpy

        self.count = len(lengths)
        self._size = size
        self._keys = keys
        self._starts = numpy.concatenate(([0], numpy.cumsum(lengths))).astype(numpy.int64)
        self._ends = functools.lru_cache(_EPOCHS_KEPT)(self._block_ends)

    def first(self, files: Whole) -> Whole:
        found: Whole = self._starts[files]
        return found

    def lengths(self, files: Whole) -> Whole:
        found: Whole = self._starts[files + 1] - self._starts[files]
        return found

    def block(self, epoch: int, position: int) -> _Block:
        ends = self._ends(epoch)
        number = int(ends.searchsorted(position, "right"))
        return _Block(number, int(ends[number - 1]) if number else 0, int(ends[number]))

    def _block_ends(self, epoch: int) -> Whole:
        """Positions at which the blocks of an epoch end."""
        import numpy

        ends = numpy.cumsum(self.lengths(permuted(numpy.arange(self.count), self.count, self._keys(epoch))))
        last = numpy.arange(self._size - 1, self.count + self._size - 1, self._size).clip(max=self.count - 1)
        kept: Whole = ends[last].copy()
        return kept


class _Alike:
    """Neighbouring samples that are taken for files, `each` of so many. Only the last file may be shorter, so where a block
    ends follows from the place of that one. size, keys: as of `_Named`."""

    def __init__(self, samples: int, each: int, size: int, keys: Callable[[int], Any]) -> None:
        self.count = -(-samples // each)
        self._size = size
        self._samples = samples
        self._each = each
        self._missing = self.count * each - samples  # of the last file
        last = self.count - 1
        self._shorter = functools.lru_cache(_EPOCHS_KEPT)(lambda epoch: place_of(last, self.count, keys(epoch)) // size)

    def first(self, files: Whole) -> Whole:
        found: Whole = files * self._each
        return found

    def lengths(self, files: Whole) -> Whole:
        import numpy

        found: Whole = numpy.minimum(self._samples - files * self._each, self._each)
        return found

    def block(self, epoch: int, position: int) -> _Block:
        shorter, whole = self._shorter(epoch), self._size * self._each
        number = position // whole
        if number >= shorter:
            number = max(shorter, (position + self._missing) // whole)
        return _Block(number, self._end(number - 1, shorter), self._end(number, shorter))

    def _end(self, block: int, shorter: int) -> int:
        return min((block + 1) * self._size, self.count) * self._each - (self._missing if block >= shorter else 0)


class _Blocks:
    """Positions of an epoch are those of its files, one behind the other in a permuted order. A block is so many files of them,
    cut where the run of one shard ends. Source of the permutation: Black and Rogaway, "Ciphers with arbitrary finite domains"
    (2002), section 5: a Feistel network with cycle walking."""

    def __init__(self, epochs: Epochs, files: int, samples: int) -> None:
        self._epochs = epochs
        self._size = self.together = files  # that a shard reads at a time
        self._keys: Callable[[int], Any] = lambda epoch: keys_of(epochs.seed, epoch, "files")
        self._files: _Files = (
            _Alike(epochs.samples, samples, files, self._keys)
            if epochs.files is None
            else _Named(epochs.files, files, self._keys)
        )

    def indices(self, step: int, shard: int) -> list[int]:
        import numpy

        epoch, first, last = self._epochs.own_rows(step, shard)
        start, end = self._epochs.run(epoch, shard)
        found: list[int] = []
        first, last = start + first, start + last
        while first < last:
            block = self._files.block(epoch, first)
            piece = max(start, block.begins), min(end, block.ends)
            until = min(last, piece[1])
            found += self._within(epoch, block, piece, numpy.arange(first, until)).tolist()
            first = until
        return found

    def _within(self, epoch: int, block: _Block, piece: tuple[int, int], positions: Whole) -> Whole:
        """The samples at positions of one block; piece: the part of it that is shuffled."""
        import numpy

        count, keys = self._files.count, keys_of(self._epochs.seed, epoch, piece[0])
        shuffled = piece[0] - block.begins + permuted(positions - piece[0], piece[1] - piece[0], keys)
        places = numpy.arange(block.number * self._size, min((block.number + 1) * self._size, count))
        files = permuted(places, count, self._keys(epoch))
        ends = numpy.cumsum(self._files.lengths(files))
        index = numpy.searchsorted(ends, shuffled, "right")
        within = shuffled - numpy.where(index > 0, ends[index - 1], 0)
        found: Whole = self._files.first(files[index]) + within
        return found


def shuffled(epochs: Epochs) -> Order:
    """All samples in one random order, another in each epoch: 8 bytes of memory per sample."""
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
    """Files in random order, and samples at random within a few neighbouring files: nothing is held per sample."""
    return _Blocks(epochs, files, samples)


def sequential(epochs: Epochs) -> Order:
    """The order of the training set, the same in each epoch: nothing is held per sample."""
    return _Sequential(epochs)


ORDERS: Table[Callable[..., Order]] = Table(
    "data.order", {"shuffled": shuffled, "blocks": blocks, "sequential": sequential}
)


def permuted(positions: Whole, size: int, keys: Any) -> Whole:
    """A permutation of range(size), asked at `positions`, int64. keys: uint64, one per round of the network."""

    def rounds(left: Any, right: Any, mask: Any) -> tuple[Any, Any]:
        for key in keys:
            left, right = right, left ^ (_mixed(right + key) & mask)
        return left, right

    return _walked(positions, size, rounds)


def place_of(value: int, size: int, keys: Any) -> int:
    """The position at which `permuted` gives this value."""
    import numpy

    def rounds(left: Any, right: Any, mask: Any) -> tuple[Any, Any]:
        for key in keys[::-1]:
            left, right = right ^ (_mixed(left + key) & mask), left
        return left, right

    return int(_walked(numpy.array([value]), size, rounds)[0])


def _walked(values: Whole, size: int, rounds: Callable[[Any, Any, Any], tuple[Any, Any]]) -> Whole:
    """Each value through a network on the next power of 4, until it is below `size`."""
    import numpy

    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask, shift = numpy.uint64((1 << half) - 1), numpy.uint64(half)
    found = values.astype(numpy.uint64)
    walking = numpy.ones(len(found), bool)
    while walking.any():
        left, right = rounds(found[walking] >> shift, found[walking] & mask, mask)
        found[walking] = (left << shift) | right
        walking[walking] = found[walking] >= size
    return found.astype(numpy.int64)


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


def keys_of(*what: object) -> Any:
    import numpy

    return numpy.frombuffer(hashlib.shake_256(repr(what).encode()).digest(8 * _ROUNDS), "<u8")


def problems(name: str, options: Mapping[str, Any], small: Callable[[], Epochs], steps: int) -> list[str]:
    """The fault of an order of the user's project, tried on an epoch of so many steps; at most one sentence."""

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
