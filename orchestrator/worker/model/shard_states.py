"""State that belongs to a shard and is kept from step to step by its host; it changes only when a step commits.

A shard's state is computed with its contribution, before the vote; written then, it would be ahead of a step that is repeated
or given up. So it is staged, and takes effect with the step. A worker that is a step behind the others has not committed what
they have. They could not have committed it without this worker's part of the sum, so what it had staged by then is the state of
its shards after that step. It takes effect when the worker takes over the others' state. Before the vote what is staged counts
for nothing: a worker that has yet to go back to a checkpoint is ahead, too.

The state of a shard that is no longer hosted is kept until the next step commits: until then it may be that nobody else has
it, since a handover can be interrupted anywhere. With the step it is too old for anything.

If there is memory that outlives the process (`member/shard_slots.py`), the states lie there too. Every other worker that sees
that memory finds the states of a dead worker's shards, as if it had hosted them itself. A lone worker keeps them to itself:
with its death all is lost that they belong to. They go there before another worker takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from orchestrator.errors import Inconsistent
from orchestrator.optim.transforms import State
from orchestrator.worker.member.shard_slots import ShardSlots


class ShardStates:
    """The states of the hosted shards."""

    def __init__(
        self,
        initial: Callable[[], State],  # the state of a shard that has had no step yet
        # called with the steps and the shards that are staged, before these outlive the process
        securing: Callable[[int, Iterable[int]], None] = lambda _steps, _shards: None,
        *,
        alike: bool = True,  # every later state has the same tensors as the initial one
        replaceable: bool = False,  # the initial one leads to the same bits after any step
        reading: Callable[[State], State] = lambda state: state,  # what a state from elsewhere is here
    ) -> None:
        self._initial = initial
        self._reading = reading
        self._alike = alike
        self._replaceable = replaceable
        self._rows: dict[int, State] = {}
        self._staged: dict[int, State] = {}
        self._final = False  # whether what is staged is what the present step leaves if it commits
        self._steps = 0  # committed; before the first one every shard has the initial state, wherever it is hosted
        self._slots: ShardSlots | None = None
        self._alone = False
        self._securing = securing

    def outlive(self, make: Callable[[State], ShardSlots | None], *, alone: bool = False) -> None:
        """Keep the states where they outlive this process, if there is such a place. make: called once, with a row; alone: with
        this process all is lost from now on that they belong to. Raises MemoryError."""
        if self._slots is None:
            self._slots = make(self._initial())
        was_alone, self._alone = self._alone, alone
        if was_alone:
            self.settle([*self._rows])

    @property
    def held(self) -> tuple[int, ...]:
        """The shards whose state as of the last committed step is here."""
        return tuple(sorted({*self._rows, *self._kept(self._steps)}))

    @property
    def staged(self) -> tuple[int, ...]:
        """The shards whose state as of the present step is here."""
        return tuple(sorted({*(self._staged if self._final else ()), *self._kept(self._steps + 1)}))

    def of(self, shard: int) -> State:
        """As of the last committed step. Raises Inconsistent where it is not here."""
        if shard not in self._rows:
            self._rows[shard] = self._found(shard)
        return self._rows[shard]

    def settle(self, shards: Sequence[int]) -> None:
        """These shards are hosted from now on. Raises MemoryError."""
        if self._slots is None or self._alone:
            return
        self._slots.reserve(shards)
        for shard in shards if self._steps else ():
            self._slots.write(shard, self._steps, self.of(shard))
        self._slots.arrive()

    def stage(self, shard: int, state: State) -> None:
        """Set these tensors of the shard's state if the present step commits; the others stay as they are."""
        self._staged[shard] = {**(self._staged.get(shard) or self.of(shard)), **state}

    def finalize(self) -> None:
        """From now on what is staged is what the present step leaves. Called after the vote, and before anything is sent that
        others need to commit the step. Every hosted shard has been staged."""
        self._final = True

    def secure(self) -> None:
        """As `finalize`, and have it outlive this process. `securing` is called first."""
        self._securing(self._steps + 1, self._staged)
        if self._slots is not None and not self._alone:
            for shard, row in self._staged.items():
                self._slots.write(shard, self._steps + 1, row)
            self._slots.arrive()
        self.finalize()

    def commit(self) -> None:
        """Every hosted shard has been staged."""
        self._rows = self._staged
        self.discard()
        self._steps += 1

    def discard(self) -> None:
        """Drop what is staged: the step is repeated, or given up."""
        self._staged, self._final = {}, False

    def follow(self, before: int, steps: int) -> None:
        """This worker, which had committed so many steps, has taken over a state of `steps`."""
        if steps == before + 1:
            self._rows = self._staged if self._final else {}
        elif steps != before:
            self._rows = {}
        self.discard()
        self._steps = steps

    def fitted(self, rows: Mapping[int, Mapping[str, torch.Tensor]]) -> dict[int, State]:
        """States from elsewhere. Raises Inconsistent when they are none of these shards'."""
        rows = {shard: self._reading(dict(row)) for shard, row in rows.items()}
        if not self._alike:
            return dict(rows)
        expected = self._initial() if rows else {}
        return {shard: fitted(f"of shard {shard}", row, expected) for shard, row in rows.items()}

    def fall_back(self, lost: int, fallback: int) -> None:
        """The state of `lost` is nowhere: it goes on with a copy of the fallback's, where that is here."""
        if fallback in self._rows:
            self._rows[lost] = {name: tensor.clone() for name, tensor in self._rows[fallback].items()}

    def adopt(self, rows: Mapping[int, State]) -> None:
        """These are the states of these shards as of the last committed step."""
        self._rows.update(rows)

    def _kept(self, steps: int) -> set[int]:
        return set() if self._slots is None else self._slots.stamped(steps)

    def _found(self, shard: int) -> State:
        if not self._steps:
            return self._initial()
        kept = None if self._slots is None else self._slots.read(shard, self._steps)
        if kept is None and self._replaceable:
            return self._initial()
        if kept is None:
            raise Inconsistent(
                f"the state of shard {shard} is not here",
                "this is a fault of orchestrator",
                code="replica.no-shard-state",
            )
        return self.fitted({shard: kept})[shard]


def fitted(whose: str, state: Mapping[str, torch.Tensor], expected: State) -> State:
    """The state, where the expected one is; raises Inconsistent when it has other tensors than that."""
    if state.keys() != expected.keys():
        raise Inconsistent(
            f"the state {whose} has the tensors {sorted(state)} instead of {sorted(expected)}",
            code="checkpoint.shard-tensors",
        )
    for name, tensor in state.items():
        if (tensor.dtype, tensor.shape) != (expected[name].dtype, expected[name].shape):
            raise Inconsistent(
                f"the tensor {name!r} in the state {whose} is {tensor.dtype} of shape {tuple(tensor.shape)} instead of "
                f"{expected[name].dtype} of shape {tuple(expected[name].shape)}",
                code="checkpoint.shard-tensor-form",
            )
    return {name: tensor.to(expected[name].device) for name, tensor in state.items()}
