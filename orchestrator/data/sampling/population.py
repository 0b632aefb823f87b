"""The training samples as partitions and samplings see them: numbers, labels, and a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigurationError

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Whole = NDArray[numpy.int64]
    Real = NDArray[numpy.float64]
else:  # a table reads the annotations of its entries
    Whole = Real = Any


@dataclass(frozen=True)
class Population:
    """The training samples, as a partition or a sampling is given them."""

    samples: int  # how many there are
    shards: int  # of the run
    seed: int  # of 32 bits
    # by a name, one whole number from 0 on for each sample, equal where the pipeline's labels are equal
    labels: Callable[[str], Whole]
    weights: Callable[[], Real]  # of each sample, from the pipeline

    def stream(self) -> Any:
        """numpy's RandomState, whose sequences are frozen (NEP 19), at its beginning."""
        import numpy

        return numpy.random.RandomState(self.seed)

    def among(self, clients: int | None) -> int:
        """The number of clients: as many as there are shards where it is not given. Raises ConfigurationError where there are
        more than samples."""
        number = self.shards if clients is None else clients
        if number > self.samples:
            key = "data.shards" if clients is None else "data.partition.clients"
            raise ConfigurationError(
                [
                    f"{key}: {number} clients for {self.samples} training samples; a client owns at least one: lower {key}"
                ],
                code="data.more-clients",
            )
        return number

    def cut_evenly(self, order: Whole, clients: int) -> Whole:
        """The owners when samples in this order are cut into a run for each client; lengths differ by at most one."""
        import numpy

        owners = numpy.empty(self.samples, numpy.int64)
        owners[order] = numpy.arange(self.samples) * clients // self.samples
        return owners


_EACH = 40  # samples for each shard


def tried(shards: int) -> Population:
    """A population with three labels and equal weights."""
    count = _EACH * shards

    def labels(_: str) -> Whole:
        import numpy

        return numpy.arange(count) * 7 % 3

    def weights() -> Real:
        import numpy

        return numpy.ones(count)

    return Population(count, shards, 1, labels, weights)
