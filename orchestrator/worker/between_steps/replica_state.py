"""The state of one worker's replica and of its shards, for checkpoints and state transfers, in every mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from orchestrator.checkpoint.state import TrainingState
from orchestrator.optim.transforms import State
from orchestrator.worker.model import snapshot
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.model.shard_states import ShardStates, fitted
from orchestrator.worker.model.updater import Updater

_SUM = "sum/"  # prefix of the names of what the sum needs from step to step


class Sum(Protocol):
    """The sum of a mode. replicated: what it needs from step to step, equal at all workers."""

    replicated: State


class ReplicaState:
    """The state of a worker at a boundary."""

    holds_sum = False  # a worker with the whole model applies a step as soon as it is added up

    def __init__(
        self,
        replica: Replica,  # its parameters and buffers
        updater: Updater,  # its optimizer's state
        states: ShardStates,  # what shards keep
        *,
        keeps_shard_state: bool,  # whether shards have a state of their own
        summation: Sum | None = None,  # what the sum keeps; None where the mode sums nothing that is kept
    ) -> None:
        self.replica = replica
        self.shards: tuple[int, ...] = ()  # those that it hosts
        self.keeps_shard_state = keeps_shard_state
        self._updater = updater
        self._states = states
        self._summation = summation

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._updater.optimizer

    def start(self, steps: int) -> None:
        """Set the length of the run."""
        self._updater.start(steps)

    def initial(self, values: dict[str, Any]) -> Callable[[], TrainingState]:
        """Keeps the state before the first step; returns a function that gives it later. values: beside it."""
        state = self.capture(values)
        kept = TrainingState(state.values, {name: tensor.clone() for name, tensor in state.tensors.items()})
        return lambda: kept

    def wants(self, name: str) -> bool:  # noqa: ARG002
        """Whether `restore` uses the tensor of this name."""
        return True

    def capture(self, values: dict[str, Any]) -> TrainingState:
        """The state that all workers have alike, as views of the tensors in use, with these values beside it."""
        return snapshot.capture(self.replica.model, self._updater.optimizer, values, self._replicated)

    def capture_with_rows(self, values: dict[str, Any]) -> TrainingState:
        """The same, and the states of the hosted shards."""
        rows = {shard: self._states.of(shard) for shard in self.shards} if self.keeps_shard_state else {}
        return snapshot.capture(self.replica.model, self._updater.optimizer, values, self._replicated, rows)

    def to_write(self, values: dict[str, Any], part: tuple[int, int] | None) -> TrainingState:  # noqa: ARG002
        """The same, of which the writer takes its share. part: of a stage."""
        return self.capture_with_rows(values)

    def restore(self, state: TrainingState, advances: tuple[int, int]) -> dict[str, Any]:
        """Take over this state, also the states of shards as far as they are in it; returns the values beside it. advances:
        of the present state, and of the new one. Raises Inconsistent, and has changed nothing then."""
        replicated = fitted("of the transforms and the sum", snapshot.transforms_of(state), self._replicated)
        rows = self._states.fitted(snapshot.rows_of(state.tensors)) if self.keeps_shard_state else {}
        values = snapshot.restore(state, self.replica.model, self._updater.optimizer)
        self._set_replicated(replicated)
        if self.keeps_shard_state:
            self._states.follow(*advances)
            self._states.adopt(rows)
        self.replica.begin_step()
        self.replica.begin_shard()
        return values

    def renew_options(self) -> None:
        """Give the optimizer the options of this run again, after the state of another run has brought its own."""
        self._updater.renew_options()

    @property
    def rows(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shards whose state is here: as of the last advance, and as of the present one."""
        return self._states.held, self._states.staged

    def rows_of(self, shards: Sequence[int]) -> dict[str, torch.Tensor]:
        """The states of these shards, to be handed over. Raises Inconsistent if one is not here."""
        return snapshot.named_rows({shard: self._states.of(shard) for shard in shards})

    def adopt_rows(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take the states of shards that are hosted here from now on. Raises Inconsistent if one does not fit."""
        self._states.adopt(self._states.fitted(snapshot.rows_of(tensors)))

    def fall_back(self, lost: int, fallback: int) -> None:
        """The shard `lost`, whose state nobody has, goes on with that of `fallback`, if it is here."""
        self._states.fall_back(lost, fallback)

    @property
    def _replicated(self) -> State:
        """The values that sum and update need from step to step, beside the optimizer's state."""
        if self._summation is None:
            return self._updater.state
        own = {f"{_SUM}{name}": tensor for name, tensor in self._summation.replicated.items()}
        return {**self._updater.state, **own}

    def _set_replicated(self, state: State) -> None:
        self._updater.state = {name: tensor for name, tensor in state.items() if not name.startswith(_SUM)}
        if self._summation is not None:
            own = {name.removeprefix(_SUM): tensor for name, tensor in state.items() if name.startswith(_SUM)}
            self._summation.replicated = own
