"""One optimizer for each hosted shard, over the same parameters: replicas that run free have no common gradient.

There is one optimizer of torch. The states of the shards take turns in it. As a row (`model/shard_states.py`) a state moves
with its shard, is part of checkpoints, and is restored when an async phase is given up. A row holds the tensors of the
optimizer themselves, and the next async phase steps copies of them. So a GPU copies each state once between two sync barriers.
"""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from orchestrator.checkpoint.state import pack, unpack
from orchestrator.errors import Inconsistent
from orchestrator.numerics.byte_layout import of_bytes
from orchestrator.optim.transforms import State
from orchestrator.worker.model import snapshot

_TREE = "tree"
_FIXED = (bool, int, float, str)


@dataclass
class _Turn:
    """The state of one shard's optimizer: what `Optimizer.state` and its groups hold, without the parameters themselves."""

    state: defaultdict[torch.Tensor, Any]
    groups: list[dict[str, Any]]


class ShardOptimizers:
    """The states of the hosted shards' optimizers."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter]) -> None:
        self.optimizer = optimizer
        self._parameters = list(parameters)
        self._numbers: dict[torch.Tensor, int] = {parameter: i for i, parameter in enumerate(parameters)}
        self._device = next((parameter.device for parameter in parameters), None)
        self._start = _groups(optimizer)
        # Some have a state before their first step, as Adagrad of some versions of torch.
        self._made = {parameter: _copied(entry) for parameter, entry in optimizer.state.items()}
        self._turns: dict[int, _Turn] = {}

    def load(self, rows: Mapping[int, State]) -> None:
        """These shards are hosted from now on, with copies of these states; an empty one is that of a fresh optimizer."""
        self._turns = {}  # make room for the copies
        self._turns = {shard: self._loaded(shard, row) for shard, row in rows.items()}

    def begin(self, shard: int) -> None:
        """From now on the optimizer is this shard's."""
        turn = self._turns[shard]
        self.optimizer.state = turn.state
        for group, values in zip(self.optimizer.param_groups, turn.groups, strict=True):
            _give(group, values)

    def end(self, shard: int) -> None:
        """Its step is done. The optimizer is as it was made again, whoever looks at it."""
        self._turns[shard].groups = _groups(self.optimizer)
        self.optimizer.state = defaultdict(dict, {parameter: dict(entry) for parameter, entry in self._made.items()})
        # A step that has added or removed a group is refused by its name.
        for group, values in zip(self.optimizer.param_groups, self._start, strict=False):
            _give(group, _copied(values))

    def row(self, shard: int) -> State:
        """The shard's state, of which nothing is copied: from here on no step may be taken before `load`. Raises RunFailed for
        what a checkpoint cannot hold."""
        turn = self._turns[shard]
        state = [[self._numbers[parameter], dict(entry)] for parameter, entry in turn.state.items()]
        row: dict[str, torch.Tensor] = {}
        packed = pack({"groups": list(map(snapshot.as_saved, turn.groups)), "state": state}, row, "optimizer")
        row[_TREE] = of_bytes(json.dumps(packed).encode())
        return row

    def _loaded(self, shard: int, row: State) -> _Turn:
        state: defaultdict[torch.Tensor, Any] = defaultdict(dict)
        if not row:
            state.update((parameter, _copied(entry)) for parameter, entry in self._made.items())
            return _Turn(state, copy.deepcopy(self._start))
        try:
            tree = unpack(json.loads(row[_TREE].numpy().tobytes()), row, self._device)
            entries = {self._parameters[number]: entry for number, entry in tree["state"]}
            state.update(snapshot.placed(entries, self.optimizer))
            groups = [snapshot.as_own(saved, own) for saved, own in zip(tree["groups"], self._start, strict=True)]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise Inconsistent(
                f"the optimizer's state of shard {shard} is not whole: {error}", code="checkpoint.shard-optimizer"
            ) from error
        return _Turn(state, groups)


def _groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The groups without their parameters."""
    return [_copied({key: v for key, v in group.items() if key != "params"}) for group in optimizer.param_groups]


def _give(group: dict[str, Any], values: Mapping[str, Any]) -> None:
    """These options and no others: a step may have added some, which are of the shard that it was."""
    for name in group.keys() - values.keys() - {"params"}:
        del group[name]
    group.update(values)


def _copied(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied_value(value) for key, value in entry.items()}


def _copied_value(value: Any) -> Any:
    """The value, and a copy of one that may be changed in place."""
    return value if isinstance(value, _FIXED) or value is None else copy.deepcopy(value)
