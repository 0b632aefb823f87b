"""The state of one worker's replica and of its shards, for checkpoints and state transfers, in every mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from orchestrator.checkpoints.state import TrainingState
from orchestrator.engine.compute import snapshot
from orchestrator.engine.compute.replica import Replica
from orchestrator.engine.compute.shard_states import ShardStates
from orchestrator.engine.compute.updater import Updater


class ReplicaState:
    """What a worker has at a boundary. shards: those it hosts; keeps_shard_state: whether shards have a state of their own."""

    def __init__(self, replica: Replica, updater: Updater, states: ShardStates, *, keeps_shard_state: bool) -> None:
        self.replica = replica
        self.shards: tuple[int, ...] = ()
        self.keeps_shard_state = keeps_shard_state
        self._updater = updater
        self._states = states

    def capture(self, values: dict[str, Any]) -> TrainingState:
        """What all workers have alike, as views of what is in use, with these values beside it."""
        return snapshot.capture(self.replica.model, self._updater.optimizer, values, self._updater.state)

    def capture_with_rows(self, values: dict[str, Any]) -> TrainingState:
        """The same, and what the hosted shards keep."""
        rows = {shard: self._states.of(shard) for shard in self.shards} if self.keeps_shard_state else {}
        return snapshot.capture(self.replica.model, self._updater.optimizer, values, self._updater.state, rows)

    def restore(self, state: TrainingState, advances: tuple[int, int]) -> dict[str, Any]:
        """Be as far as whoever this state is from, also with what shards keep, as far as that is in it; returns the values
        beside it. advances: how many there had been here, and in that state. Raises Inconsistent, and has changed nothing
        then."""
        transforms = self._updater.fitted(snapshot.transforms_of(state))
        rows = self._states.fitted(snapshot.rows_of(state.tensors))
        values = snapshot.restore(state, self.replica.model, self._updater.optimizer)
        self._updater.state = transforms
        if self.keeps_shard_state:
            self._states.follow(*advances)
            self._states.adopt(rows)
        self.replica.begin_step()
        self.replica.begin_shard()
        return values

    @property
    def rows(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shards whose state is here: as of the last advance, and as of the present one."""
        return self._states.held, self._states.staged

    def rows_of(self, shards: Sequence[int]) -> dict[str, torch.Tensor]:
        """What these shards keep, to be handed over. Raises Inconsistent where that is not here."""
        return snapshot.named_rows({shard: self._states.of(shard) for shard in shards})

    def adopt_rows(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """What shards keep that are hosted here from now on. Raises Inconsistent where it does not fit."""
        self._states.adopt(self._states.fitted(snapshot.rows_of(tensors)))

    def inherit(self, lost: int, heir: int) -> None:
        """The shard `lost`, whose state nobody has, goes on with that of `heir`, if it is here."""
        self._states.inherit(lost, heir)
