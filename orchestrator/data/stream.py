"""`Stream`: training samples that have no numbers: of a generator, a queue, an API. `datasets()` returns one in the place of a
data set.

    class Text(Pipeline):
        def datasets(self):
            return Documents(), None

    class Documents(Stream):
        def stream(self, shard, shards, epoch, generator):
            for number in itertools.count(shard, shards):
                yield document(number, generator)

There is one stream for each shard, for the life of the run, whoever hosts the shard. Which samples micro-batch (step, shard)
holds follows from how many the shard has taken before it, so it depends on neither workers nor losses.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.data.drawn import Drawn
from orchestrator.errors import ConfigurationError

if TYPE_CHECKING:
    import torch

    from orchestrator.plan import Data


class Stream:
    """The base of every stream. state_bytes: the most that the `state_dict` of a stream takes, where it has one. live: it is a
    queue or an API, which gives each sample once: all that it gives is recorded with the run, and a rerun reads that."""

    state_bytes: ClassVar[int] = 16384
    live: ClassVar[bool] = False

    def stream(self, shard: int, shards: int, epoch: int, generator: torch.Generator) -> Iterable[Any]:
        """The samples of a shard in an epoch, each time the same. When they end, those of the next epoch begin; an epoch
        without samples ends the run. generator: seeded for this shard and epoch, as the generators of torch, numpy and
        `random` are for each sample.

        What is returned may have `state_dict()` and `load_state_dict(state)`, as the data sets of torchdata and Hugging Face
        have: a new host of the shard goes on from there. Of others it takes the samples of the epoch anew, up to where the
        shard is.

        Of a live stream a sample is made of tensors, numbers, texts, lists, tuples and dicts, to be recorded. It is opened by
        each host of the shard anew, and once more, without taking a sample, while a worker is prepared.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Positions(Drawn):
    """Which samples of its stream a shard takes. An epoch has no length that is known beforehand."""

    def steps_of(self, epochs: int) -> int:  # noqa: ARG002
        """Raises ConfigurationError."""
        raise ConfigurationError(
            ["run.epochs: the training set is a Stream, which has no length"],
            "give run.steps=N; when the samples of a stream end, it begins its next epoch by itself",
        )

    @property
    def steps_per_epoch(self) -> int:
        """0: it is not known."""
        return 0

    def indices(self, step: int, shard: int) -> range:
        """The samples of micro-batch (step, shard), counted through the shard's stream."""
        return range(*self.rows(step, shard))


def positions(data: Data) -> Positions:
    """For a run whose training set is a Stream. Raises ConfigurationError for what needs samples that have numbers."""
    refused = [
        f"{key}: it chooses among samples by their numbers, and those of a Stream have none; leave it out"
        for key, given in (
            ("data.partition", data.partition is not None),
            ("data.sampling", data.sampling is not None),
            ("data.subset", data.subset is not None),
            ("data.order", data.order.name != "shuffled"),
            ("privacy", data.privacy is not None),
        )
        if given
    ]
    if data.loaders:
        refused.append(
            "data.loaders: the samples of a Stream come one after the other, and its worker takes them; set data.loaders=0"
        )
    if data.local is not None and data.local.epochs is not None:
        refused.append("local.epochs: a Stream has no length; set local.steps")
    if refused:
        raise ConfigurationError(refused)
    return Positions(0, data.batch_size, data.shards)
