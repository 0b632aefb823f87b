"""The state of one stage at a boundary: taken and put back by names, so that every layout reads the checkpoints of every
other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from orchestrator.checkpoint.parts import divide
from orchestrator.checkpoint.state import TrainingState, digest
from orchestrator.errors import Inconsistent
from orchestrator.optim.transforms import State
from orchestrator.worker.between_steps.run_state import RunState, SecondVote
from orchestrator.worker.model import snapshot
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.model.shard_states import fitted
from orchestrator.worker.model.updater import Updater
from orchestrator.worker.pipeline_parallel.commit_vote import HeldSum
from orchestrator.worker.pipeline_parallel.cuts import Cuts

_MODEL, _OPTIMIZER = "model/", "optimizer/state/"
Packed = dict[str, Any]  # a dictionary as `checkpoint.state.pack` makes it


class StageState:
    """Has the verbs of `between_steps.replica_state.ReplicaState`."""

    keeps_shard_state = False
    rows: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def __init__(
        self,
        replica: Replica,  # of this stage's part
        updater: Updater,  # applies a gradient to it
        cuts: Cuts,  # where the model is cut
        stage: int,  # its number
        held: Mapping[str, torch.Tensor],  # by name, the tensors that the stage uses, its own and those of other stages
        order: Sequence[str],  # the names of all trained parameters of the model
        # makes its first state once more, with values and transforms
        make: Callable[[dict[str, Any], State], TrainingState],
    ) -> None:
        self.replica = replica
        self.cuts = cuts
        self.shards: tuple[int, ...] = ()
        self.sum: HeldSum | None = None  # one that it holds
        # By name, the tensors of this stage, and those of other stages that it uses.
        self.owned = {name: tensor for name, tensor in held.items() if cuts.owners[name] == stage}
        self.guests = {name: tensor for name, tensor in held.items() if cuts.owners[name] != stage}
        self._updater = updater
        self._make = make
        self._order = {name: i for i, name in enumerate(order)}
        self._whole: Packed | None = None
        self._part: tuple[int, int] | None = None

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._updater.optimizer

    @property
    def holds_sum(self) -> bool:
        return self.sum is not None

    def follow(self, state: RunState, agreed: SecondVote) -> None:
        """Apply the sum that it holds, of the step after this state: others have. Raises CalledOff and Inconsistent, and has
        changed nothing then."""
        if self.sum is None or self.sum.step != state.steps or not agreed:
            held = "none" if self.sum is None else f"that of step {self.sum.step}"
            raise Inconsistent(
                f"a worker was to apply the sum of step {state.steps}, and holds {held}",
                "this is a fault of orchestrator",
                code="stages.held-sum",
            )
        self.sum.apply(state, agreed)

    def start(self, steps: int) -> None:
        self._updater.start(steps)

    def initial(self, values: dict[str, Any]) -> Callable[[], TrainingState]:
        """Made anew by the pipeline when it is asked for, since a copy would take as much memory as the parameters; then the
        optimizer's state is let go of before."""
        transforms, optimizer = dict(self._updater.state), self._updater.optimizer
        expected = {name: digest(tensor) for name, tensor in self.capture(values).tensors.items()}

        def again() -> TrainingState:
            optimizer.state.clear()
            for parameter in self.replica.parameters:
                parameter.grad = None
            state = self._make(values, transforms)
            found = {name: digest(tensor) for name, tensor in state.tensors.items()}
            if found != expected:
                name = min(name for name in expected | found if found.get(name) != expected.get(name))
                raise Inconsistent(
                    f"model() gave {name.removeprefix(_MODEL)!r} another first value when it was called once more",
                    "model() must depend on nothing but its arguments, its files and the seeded generators; with "
                    "checkpoint.every a run goes back to a checkpoint instead",
                    code="stages.other-first-value",
                )
            return state

        return again

    def wants(self, name: str) -> bool:
        """Whether `restore` uses the tensor of this name."""
        if name.startswith(_OPTIMIZER):  # parameter/key, and either may have a slash
            parts = name.removeprefix(_OPTIMIZER).split("/")
            return any("/".join(parts[:end]) in self.owned for end in range(1, len(parts)))
        return not name.startswith(_MODEL) or name.removeprefix(_MODEL) in self.owned

    def capture(self, values: dict[str, Any]) -> TrainingState:
        """The state that all members of this stage have alike."""
        return snapshot.capture(self.replica.model, self._updater.optimizer, values, self._updater.state)

    def optimizer_values(self) -> Packed:
        """The values that this stage's optimizer keeps, without the tensors themselves."""
        return dict(self.capture({}).values["optimizer"])

    def begin_save(self, optimizers: Sequence[Packed], part: tuple[int, int] | None) -> None:
        """Begin to write this member's part of a checkpoint. optimizers: the `optimizer_values` of all members; part: which
        of how many this member writes of its stage."""
        self._whole, self._part = _merged(optimizers, self._order), part

    def capture_with_rows(self, values: dict[str, Any]) -> TrainingState:
        """This member's part of a checkpoint, whose tensors nobody else writes; with the values of the whole."""
        assert self._whole is not None
        assert self._part is not None
        state = self.to_write(values, self._part)
        return replace(state, values={**state.values, "optimizer": self._whole})

    def to_write(self, values: dict[str, Any], part: tuple[int, int] | None) -> TrainingState:
        """The same before a save has begun, with the values of this stage alone. part: as of `begin_save`, of a writer."""
        assert part is not None
        number, parts = part
        state = self.capture(values)
        names = divide({name: tensor.nbytes for name, tensor in state.tensors.items()}, parts)[number]
        tensors = {name: state.tensors[name] for name in names}
        return TrainingState(state.values, tensors, state.steady.intersection(names), frozenset(names))

    def restore(self, state: TrainingState, advances: tuple[int, int]) -> dict[str, Any]:  # noqa: ARG002
        """As far as the state is of this stage. Raises Inconsistent, and has changed nothing then."""
        if not state.tensors:  # of the run alone, from a member of another stage: the parameters are here already
            return snapshot.run_state_of(state)
        own = self._of_this_stage(state)
        kept = fitted("of the transforms", snapshot.transforms_of(own), self._updater.state)
        values = snapshot.restore(own, self.replica.model, self._updater.optimizer)
        self._updater.state = kept
        self.replica.begin_step()
        self.replica.begin_shard()
        return values

    def renew_options(self) -> None:
        """Give the optimizer the options of this run again, after the state of another run has brought its own."""
        self._updater.renew_options()

    def rows_of(self, shards: Sequence[int]) -> dict[str, torch.Tensor]:  # noqa: ARG002
        return {}

    def adopt_rows(self, tensors: Mapping[str, torch.Tensor]) -> None:
        pass

    def fall_back(self, lost: int, fallback: int) -> None:
        pass

    def _of_this_stage(self, state: TrainingState) -> TrainingState:
        tensors = {name: tensor for name, tensor in state.tensors.items() if self.wants(name)}
        tree = _dictionary(state.values["optimizer"])
        groups = [_dictionary(group) for group in tree["groups"]]
        for group in groups:
            group["params"] = [name for name in group["params"] if name in self.owned]
        kept = {name: entry for name, entry in _dictionary(tree["state"]).items() if name in self.owned}
        tree |= {"groups": [_packed(group) for group in groups], "state": _packed(kept)}
        return replace(state, values={**state.values, "optimizer": _packed(tree)}, tensors=tensors)


def _merged(optimizers: Sequence[Packed], order: Mapping[str, int]) -> Packed:
    """The optimizers of all stages as that of an unsplit model. They have the same groups of parameters with the same
    options."""
    trees = [_dictionary(packed) for packed in optimizers]
    whole = trees[0]
    groups = [_dictionary(group) for group in whole["groups"]]
    for i, group in enumerate(groups):
        names = {name for tree in trees for name in _dictionary(tree["groups"][i])["params"]}
        group["params"] = sorted(names, key=order.__getitem__)
    kept: dict[str, Any] = {}
    for tree in trees:
        kept.update(_dictionary(tree["state"]))
    in_order = {name: kept[name] for name in sorted(kept, key=order.__getitem__)}
    return _packed({**whole, "groups": [_packed(group) for group in groups], "state": _packed(in_order)})


def _dictionary(packed: Packed) -> dict[str, Any]:
    return {key: value for key, value in packed["dict"]}  # noqa: C416


def _packed(values: Mapping[str, Any]) -> Packed:
    return {"dict": [[key, value] for key, value in values.items()]}
