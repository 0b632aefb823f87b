"""A training set of several sources, `data.mixture: {a: 0.7, b: 0.3}`: what `datasets()` returns as {"a": ..., "b": ...}.

Which source a row comes from is `data/sampling/mixtures.py`. Each source is gone through in epochs of its own, in the order
that `data.order` names: of each epoch a shard has a run of its own (`Turns.run`), so that in an epoch of all shards every
sample comes once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy
import torch

from orchestrator.data.files.dataset import spread
from orchestrator.data.files.prefetch import SeveralPrefetchers
from orchestrator.data.sampling.mixtures import Pattern, counts_of
from orchestrator.data.sampling.orders import Epochs, Order
from orchestrator.errors import PipelineRaised
from orchestrator.numerics import streams

_MOST_ROWS = 1 << 32  # of a micro-batch


class Sources:
    """One map-style data set: all samples of the first source, then all of the second, and so on."""

    def __init__(self, sources: Mapping[str, Any]) -> None:
        self.by_name = dict(sources)
        self._ends = numpy.cumsum([len(each) for each in sources.values()])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = int(self._ends.searchsorted(index, "right"))
        return [*self.by_name.values()][number][index - self.first(number)]

    @property
    def file_lengths(self) -> list[int] | None:
        """The lengths of all sources' files, where any has some; a source without files counts as a file then."""
        return self._parts() if any(hasattr(source, "file_lengths") for source in self.by_name.values()) else None

    def _parts(self) -> list[int]:
        lengths = [getattr(source, "file_lengths", [len(source)]) for source in self.by_name.values()]
        return [int(length) for each in lengths for length in each]

    @property
    def is_elsewhere(self) -> bool:
        return bool(self._elsewhere())

    @property
    def listing(self) -> str | None:
        """As `Files.listing`, of all sources that have one."""
        found = {name: getattr(source, "listing", None) for name, source in self.by_name.items()}
        return hashlib.sha256(repr(found).encode()).hexdigest() if any(found.values()) else None

    def need_room(self, together: int) -> None:
        """As `Files.need_room`, for each source."""
        for _, source in self._elsewhere():
            source.need_room(together)

    def ahead(self, share: int) -> SeveralPrefetchers | None:
        """As `Files.ahead`, with an equal share for each source."""
        found = self._elsewhere()
        parts = [(source.ahead(share // len(found)), partial(self._own, number)) for number, source in found]
        return SeveralPrefetchers(parts, share) if parts else None

    def spread(self, most: int, files: int) -> list[int]:
        """As `Files.spread`."""
        return spread(self._parts(), most, files)

    def _elsewhere(self) -> list[tuple[int, Any]]:
        sources = enumerate(self.by_name.values())
        return [(number, source) for number, source in sources if getattr(source, "is_elsewhere", False)]

    def _own(self, number: int, indices: Sequence[int]) -> list[int]:
        """Those of one source, as it numbers them."""
        first, end = self.first(number), int(self._ends[number])
        return [index - first for index in indices if first <= index < end]

    def first(self, number: int) -> int:
        """The index of the first sample of a source."""
        return int(self._ends[number - 1]) if number else 0


def whole(train: Any) -> Any:
    """The training set that a pipeline returned, as one that is read by index. Raises PipelineRaised."""
    if not isinstance(train, Mapping) or _has_rows(train):
        return train
    strange = next((name for name in train if not isinstance(name, str)), None)
    if strange is not None:
        raise PipelineRaised(
            f"the training dataset is a {type(train).__name__} with the key {strange!r}",
            "a mapping has several training sets by their names; return samples as a list or as a torch Dataset",
            code="data.mixture-keys",
        )
    return Sources(train)


def _has_rows(mapping: Mapping[Any, Any]) -> bool:
    """Whether it gives its rows one by one, and not its keys, as a TensorDict does."""
    first = next(iter(mapping), None)
    return first is not None and not any(first is key for key in mapping.keys())  # noqa: SIM118


def check(train: Any, weights: Mapping[str, float]) -> None:
    """Raises PipelineRaised where what a pipeline returned is not what `data.mixture` mixes."""
    returned = sorted(train.by_name) if isinstance(train, Sources) else None
    if returned is None and weights:
        raise PipelineRaised(
            f"datasets() returned one training set, and data.mixture names {', '.join(sorted(weights))}",
            "return them as a mapping of these names to data sets, or leave data.mixture out",
            code="data.mixture-one-set",
        )
    if returned is not None and returned != sorted(weights):
        raise PipelineRaised(
            f"datasets() returned the training sets {', '.join(returned)}, and data.mixture names "
            f"{', '.join(sorted(weights)) or 'none'}",
            f"set data.mixture to the weight of each, such as {{{', '.join(f'{name}: 1' for name in returned)}}}",
            code="data.mixture-names",
        )


@dataclass(frozen=True)
class Turns:
    """The facts of one source that an order is told (`orders.Epochs`). A step is a stretch of draws by one shard within one
    epoch, as `step_of` numbers it."""

    seed: int
    samples: int
    shards: int
    name: str
    files: Sequence[int] | None = None

    def step_of(self, first: int, last: int) -> int:
        return first * _MOST_ROWS + last - first

    def own_rows(self, step: int, shard: int) -> tuple[int, int, int]:
        first, rows = divmod(step, _MOST_ROWS)
        start, end = self.run(0, shard)
        epoch, first = divmod(first, end - start)
        return epoch, first, first + rows

    def rows(self, step: int, shard: int) -> tuple[int, int, int]:
        epoch, first, last = self.own_rows(step, shard)
        start, _ = self.run(epoch, shard)
        return epoch, start + first, start + last

    def run(self, epoch: int, shard: int) -> tuple[int, int]:  # noqa: ARG002
        return self.samples * shard // self.shards, self.samples * (shard + 1) // self.shards

    def permutation(self, epoch: int) -> torch.Tensor:
        return streams.permutation(self.seed, f"order of source {self.name}", epoch, self.samples)

    def drawn(self, order: Order, shard: int, first: int, last: int) -> list[int]:
        """The samples of these draws, which may be of several epochs."""
        start, end = self.run(0, shard)
        found: list[int] = []
        while first < last:
            until = min(last, (first // (end - start) + 1) * (end - start))
            found += order.indices(self.step_of(first, until), shard)
            first = until
        return found


class Rows(Protocol):
    """How many rows each shard has (`drawn.Drawn`)."""

    @property
    def shards(self) -> int: ...

    def rows(self, step: int, shard: int) -> tuple[int, int]: ...


class Mixture:
    """A sampler: which samples of `Sources` micro-batch (step, shard) holds."""

    def __init__(
        self,
        seed: int,  # of the run
        drawn: Rows,  # how many rows each shard has
        sources: Sources,  # the training set
        weights: Mapping[str, float],  # by source
        order: Callable[[Epochs], Order],  # builds that of a source
        files: Callable[[Any], Sequence[int] | None],  # of a source, as `Epochs.files`
    ) -> None:
        """Raises PipelineRaised."""
        counts = counts_of(weights)
        self._drawn = drawn
        self._pattern = Pattern(seed, tuple(counts[name] for name in sources.by_name))
        self._firsts = [sources.first(number) for number in range(len(sources.by_name))]
        self._turns = []
        for name, source in sources.by_name.items():
            if len(source) < drawn.shards:
                raise PipelineRaised(
                    f"the training set {name!r} has {len(source)} samples for {drawn.shards} shards",
                    "each shard goes through a part of its own: give it more, or lower data.shards (which changes the result)",
                    code="data.mixture-too-small",
                )
            own = streams.seed_of(seed, f"source {name}")
            self._turns.append(Turns(own, len(source), drawn.shards, name, files(source)))
        self._orders = [order(turns) for turns in self._turns]
        self.together = max(getattr(each, "together", 1) for each in self._orders)
        self.held_bytes = sum(getattr(each, "held_bytes", 0) for each in self._orders)

    def indices(self, step: int, shard: int) -> list[int]:
        """The samples of micro-batch (step, shard), as indices into the data set."""
        first, last = self._drawn.rows(step, shard)
        found = numpy.empty(last - first, numpy.int64)
        for source, begin, end, rows in self._pattern.pieces(shard, first, last):
            drawn = self._turns[source].drawn(self._orders[source], shard, begin, end)
            found[rows] = numpy.array(drawn, numpy.int64) + self._firsts[source]
        return found.tolist()
