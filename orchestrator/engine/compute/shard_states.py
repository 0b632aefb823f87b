"""What shards keep from step to step, by shard: that of the hosted ones, changed only when a step commits.

A shard's state is computed with its contribution, before the vote; written then, it would be ahead of a step that is repeated
or given up. So it is staged, and takes effect with the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch

State = Mapping[str, torch.Tensor]


class ShardStates:
    """initial: of a shard that has had no step yet."""

    def __init__(self, initial: Callable[[], State]) -> None:
        self._initial = initial
        self._rows: dict[int, State] = {}
        self._staged: dict[int, State] = {}

    def of(self, shard: int) -> State:
        """As of the last committed step."""
        if shard not in self._rows:
            self._rows[shard] = self._initial()
        return self._rows[shard]

    def stage(self, shard: int, state: State) -> None:
        """What it is from the present step on, if that commits."""
        self._staged[shard] = state

    def commit(self) -> None:
        self._rows.update(self._staged)
        self._staged = {}

    def discard(self) -> None:
        """What is staged: the step is repeated, or given up."""
        self._staged = {}

    def keep(self, shards: Iterable[int]) -> None:
        """From now on only these are hosted."""
        self._rows = {shard: self._rows[shard] for shard in shards if shard in self._rows}
