"""State that belongs to a shard and is kept from step to step by its host; it changes only when a step commits.

A shard's state is computed with its contribution, before the vote; stored then, it would be ahead of a step that is
repeated or given up. So it is staged, and takes effect with the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch

State = Mapping[str, torch.Tensor]


class ShardStates:
    """The states of the hosted shards. initial: the state of a shard that has had no step yet."""

    def __init__(self, initial: Callable[[], State]) -> None:
        self._initial = initial
        self._rows: dict[int, State] = {}
        self._staged: dict[int, State] = {}

    def of(self, shard: int) -> State:
        """The shard's state after the last committed step."""
        if shard not in self._rows:
            self._rows[shard] = self._initial()
        return self._rows[shard]

    def stage(self, shard: int, state: State) -> None:
        """Set the shard's state if the present step commits."""
        self._staged[shard] = state

    def commit(self) -> None:
        self._rows.update(self._staged)
        self._staged = {}

    def discard(self) -> None:
        """Drop what is staged: the step is repeated, or given up."""
        self._staged = {}

    def keep(self, shards: Iterable[int]) -> None:
        """Keep only the states of these shards, which are hosted from now on."""
        self._rows = {shard: self._rows[shard] for shard in shards if shard in self._rows}
