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
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch


class Stream:
    """The base of every stream. state_bytes: the most that the `state_dict` of a stream takes, where it has one. live: it is a
    queue or an API, which gives each sample once: all that it gives is recorded with the run, and a rerun reads that."""

    state_bytes: ClassVar[int] = 16384
    live: ClassVar[bool] = False

    def stream(self, shard: int, shards: int, epoch: int, generator: torch.Generator) -> Iterable[Any]:
        """The samples of a shard in an epoch, each time the same. When they end, those of the next epoch begin; an epoch
        without samples ends the run. generator: seeded for this shard and epoch, as the generators of torch, numpy and
        `random` are for each sample.

        The result may have `state_dict()` and `load_state_dict(state)`, as the data sets of torchdata and Hugging Face have:
        a new host of the shard goes on from there. Without these it takes the samples of the epoch anew, up to where the
        shard is.

        A sample of a live stream is made of tensors, numbers, texts, lists, tuples and dicts, to be recorded. It is opened by
        each host of the shard anew, and once more, without taking a sample, while a worker is prepared.
        """
        raise NotImplementedError
