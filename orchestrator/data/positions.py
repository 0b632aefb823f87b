"""Which samples of its stream a shard takes (`data.files.stream.Stream`): a function of step and shard, as everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.data.drawn import Drawn
from orchestrator.errors import ConfigurationError, coded

if TYPE_CHECKING:
    from orchestrator.data.plan import Data


@dataclass(frozen=True)
class Positions(Drawn):
    """Which samples of its stream a shard takes. An epoch has no length that is known beforehand."""

    def steps_of(self, epochs: int) -> int:  # noqa: ARG002
        """Raises ConfigurationError."""
        raise ConfigurationError(
            ["run.epochs: the training set is a Stream, which has no length"],
            "give run.steps=N; when the samples of a stream end, it begins its next epoch by itself",
            code="streams.run-epochs",
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
        coded(
            "streams.chooses-by-number",
            f"{key}: it chooses among samples by their numbers, and those of a Stream have none; leave it out",
        )
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
            coded(
                "streams.loaders",
                "data.loaders: the samples of a Stream come one after the other, and its worker takes them; set data.loaders=0",
            )
        )
    if data.local is not None and data.local.epochs is not None:
        refused.append(coded("streams.local-epochs", "local.epochs: a Stream has no length; set local.steps"))
    if refused:
        raise ConfigurationError(refused)
    return Positions(0, data.batch_size, data.shards)
