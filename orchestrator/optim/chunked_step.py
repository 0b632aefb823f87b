"""The step of an optimizer that works element by element, done along memory: tensors that lie side by side as one, in pieces
that a processor's cache holds.

An optimizer of torch goes over each tensor some ten times in a step, one operation after the other. Most of that is the calls
if tensors are small. If a tensor is larger than the cache, each pass reads and writes memory. No element depends on another,
so no bit changes where tensors are joined or cut (`tests/optim/test_chunked_step.py`).

The optimizer that steps is a second one of the same class, over views of the first one's parameters, gradients and state. The
state of each tensor stays where it belongs, and lies side by side with its neighbours'. State without the parameter's shape,
such as the number of steps, is kept once for each piece, and shared by neighbours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch

from orchestrator.numerics import foreach
from orchestrator.optim.by_element import BY_ELEMENT, is_watched

State = dict[str, Any]

PIECE: Final = 1 << 17  # elements; with their gradients, state and what is in between, some megabytes
_IN_ONE_PASS = ("foreach", "fused", "capturable", "differentiable")  # options for which torch goes another way
_GAP = 64  # bytes, less than which may lie between neighbours (numerics.layout)


class Pieces:
    """Steps for one optimizer, whose state may be replaced between two of them. piece: so many elements at most."""

    def __init__(self, optimizer: torch.optim.Optimizer, piece: int = PIECE) -> None:
        self._optimizer = optimizer
        self._piece = piece
        self._joins = True  # until neighbours differ in having a gradient
        self._runs: list[_Run] = []
        self._bound: list[object] | None = None
        self._held: list[State | None] = []  # so that no other one has the same identity
        self._second = optimizer

    def step(self) -> None:
        """The optimizer's step, with the same bits."""
        if not self._fits():
            self._bound = None
            self._optimizer.step()
            return
        if self._bound is None or self._bound != self._binding():
            self._bind()
            self._bound = self._binding()
        if any(run.is_mixed for run in self._runs):
            self._joins = False
            self._bind()
        for own, group in zip(self._second.param_groups, self._optimizer.param_groups, strict=True):
            own.update((key, value) for key, value in group.items() if key != "params")
        begun = [run.begin(_another(self._optimizer)) for run in self._runs]
        for run, is_done in zip(self._runs, begun, strict=True):
            run.take_gradients(none=is_done)
        self._second.step()
        for run, is_done in zip(self._runs, begun, strict=True):
            if not is_done:
                run.give_numbers(self._second.state)
        if any(begun):
            self._bound = None

    def _fits(self) -> bool:
        """Whether the optimizer is of those that work element by element, in host memory."""
        if type(self._optimizer) not in BY_ELEMENT or is_watched(self._optimizer):
            return False
        for group in self._optimizer.param_groups:
            if any(group.get(option) for option in _IN_ONE_PASS):
                return False
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is not None and not (parameter.is_cpu and _is_alike(parameter, gradient)):
                    return False
        return True

    def _binding(self) -> list[object]:
        """Identifies what the views were made of: the addresses of the parameters, and the state of each."""
        state = self._optimizer.state
        addresses = [parameter.data_ptr() for group in self._optimizer.param_groups for parameter in group["params"]]
        return [*addresses, *map(id, state), *map(id, state.values())]

    def _bind(self) -> None:
        optimizer = self._optimizer
        second = _another(optimizer)
        self._runs = []
        for group in optimizer.param_groups:
            pieces: list[torch.Tensor] = []
            for parameters in _runs(group["params"], optimizer.state, joins=self._joins):
                run = _Run(parameters, group, optimizer.state, self._piece)
                self._runs.append(run)
                pieces.extend(run.pieces)
                second.state.update(run.states())
            second.param_groups.append({**group, "params": pieces})
        self._second = second
        self._held = list(optimizer.state.values())


class _Run:
    """Parameters that lie side by side, in pieces. group: of the optimizer; state: its own, by parameter."""

    def __init__(
        self, parameters: Sequence[torch.Tensor], group: State, state: dict[torch.Tensor, State], piece: int
    ) -> None:
        first, last = parameters[0], parameters[-1]
        self.parameters = parameters
        self._starts = [(each.data_ptr() - first.data_ptr()) // each.element_size() for each in parameters]
        self._size = self._starts[-1] + last.numel()
        self._group = group
        self._state = state
        self._piece = piece
        self._states: list[State] = []  # of each parameter, where they have been stepped before
        self._keeps_nothing = False
        self._scratch: torch.Tensor | None = None
        self._large: dict[str, torch.Tensor] = {}  # side by side
        self.pieces = torch.split(first.detach().as_strided((self._size,), (1,)), piece)

    @property
    def is_mixed(self) -> bool:
        return len({parameter.grad is None for parameter in self.parameters}) > 1

    def states(self) -> dict[torch.Tensor, State]:
        """The state of each piece, if the parameters have been stepped before: views of their state, which is put side by
        side."""
        own = self._state.get(self.parameters[0])
        if not own:
            return {}
        self._states = [self._state[parameter] for parameter in self.parameters]
        large = [key for key, value in own.items() if _is_large(self.parameters[0], value)]
        self._large = {key: self._side_by_side(key) for key in large}
        parts = {key: torch.split(whole, self._piece) for key, whole in self._large.items()}
        return {
            piece: {
                key: parts[key][index] if key in parts else (_copied(value) if index else value)
                for key, value in own.items()
            }
            for index, piece in enumerate(self.pieces)
        }

    def begin(self, second: torch.optim.Optimizer) -> bool:
        """Do the first step, piece by piece, which makes the state; returns whether this was one. second: for that."""
        if self.parameters[0].grad is None or self._state.get(self.parameters[0]) or self._keeps_nothing:
            return False
        wholes: dict[str, torch.Tensor] = {}
        numbers: State = {}
        self.take_gradients()
        for index, piece in enumerate(self.pieces):
            second.param_groups = [{**self._group, "params": [piece]}]
            second.step()
            for key, value in second.state.pop(piece, State()).items():
                if not _is_large(piece, value):
                    numbers.setdefault(key, value)
                    continue
                if key not in wholes:
                    wholes[key] = value.new_zeros(self._size)
                    numbers[key] = None  # its place in the order
                wholes[key][index * self._piece : (index + 1) * self._piece].copy_(value)
        self._keeps_nothing = not numbers
        for key, value in numbers.items():
            values = (
                self._places(wholes[key])
                if key in wholes
                else [value, *map(_copied, [value] * (len(self._starts) - 1))]
            )
            for parameter, each in zip(self.parameters, values, strict=True):
                self._state[parameter][key] = each
        return True

    def take_gradients(self, *, none: bool = False) -> None:
        """Give the pieces their parts of the present gradients. none: the next step is to change nothing here."""
        gradients = [] if none else [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if not gradients:
            for piece in self.pieces:
                piece.grad = None
            return
        for piece, part in zip(self.pieces, torch.split(self._joined(gradients), self._piece), strict=True):
            piece.grad = part

    def give_numbers(self, states: Mapping[torch.Tensor, State]) -> None:
        """Have the parameters get what a step has made of the first piece's state but its tensors of that shape."""
        made = states.get(self.pieces[0])
        if not made or self.parameters[0].grad is None:
            return
        first, *others = self._states or [self._state[parameter] for parameter in self.parameters]
        for key, value in made.items():
            if key in self._large:
                continue
            first[key] = value
            if not isinstance(value, torch.Tensor):
                for other in others:
                    other[key] = value
            elif others:
                foreach.copy([other[key] for other in others], [value] * len(others))

    def _joined(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """All as they lie side by side: where they do, what is there."""
        if self._are_together(gradients):
            found: torch.Tensor = gradients[0].as_strided((self._size,), (1,))
            return found
        if self._scratch is None:
            self._scratch = gradients[0].new_zeros(self._size)
        foreach.copy(self._places(self._scratch), list(gradients))
        return self._scratch

    def _side_by_side(self, key: str) -> torch.Tensor:
        values = [self._state[parameter][key] for parameter in self.parameters]
        first: torch.Tensor = values[0]
        if self._are_together(values) and all(map(_is_alike, self.parameters, values)):
            return first.as_strided((self._size,), (1,))
        whole = first.new_zeros(self._size)
        for parameter, place, value in zip(self.parameters, self._places(whole), values, strict=True):
            place.copy_(value)
            self._state[parameter][key] = place
        return whole

    def _are_together(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether they lie as the parameters do, in one storage: allocations of their own may lie so by chance."""
        storage, at, item = tensors[0].untyped_storage(), tensors[0].data_ptr(), tensors[0].element_size()
        if storage.data_ptr() + storage.nbytes() < at + item * self._size:
            return False
        return [each.data_ptr() for each in tensors] == [at + item * start for start in self._starts]

    def _places(self, whole: torch.Tensor) -> list[torch.Tensor]:
        return [
            whole.as_strided(parameter.shape, parameter.stride(), whole.storage_offset() + start)
            for parameter, start in zip(self.parameters, self._starts, strict=True)
        ]


def _runs(
    parameters: Iterable[torch.Tensor], state: Mapping[torch.Tensor, State], *, joins: bool
) -> list[list[torch.Tensor]]:
    """In order, joined where neighbours lie side by side and the optimizer is equally far with them."""
    runs: list[list[torch.Tensor]] = []
    for parameter in parameters:
        if joins and runs and _are_neighbours(runs[-1][-1], parameter, state):
            runs[-1].append(parameter)
        else:
            runs.append([parameter])
    return runs


def _are_neighbours(one: torch.Tensor, other: torch.Tensor, state: Mapping[torch.Tensor, State]) -> bool:
    if one.dtype != other.dtype or one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return False
    gap = other.data_ptr() - one.data_ptr() - one.numel() * one.element_size()
    # The state of a parameter without dimensions looks like a number of steps.
    if not 0 <= gap < _GAP or not (_is_plain(one) and _is_plain(other)):
        return False
    if (one.grad is None) != (other.grad is None):
        return False
    return _is_as_far(one, state.get(one, {}), other, state.get(other, {}))


def _is_plain(parameter: torch.Tensor) -> bool:
    return parameter.dim() > 0 and parameter.numel() > 0 and _is_dense(parameter)


def _is_as_far(one: torch.Tensor, state: State, other: torch.Tensor, others: State) -> bool:
    if state.keys() != others.keys():
        return False
    for key, value in state.items():
        if _is_large(one, value) and _is_large(other, others[key]):
            continue
        if isinstance(value, torch.Tensor) != isinstance(others[key], torch.Tensor):
            return False
        same = torch.equal(value, others[key]) if isinstance(value, torch.Tensor) else value == others[key]
        if not same:
            return False
    return True


def _another(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """One of the same class with the same options, over nothing yet."""
    second = object.__new__(type(optimizer))
    second.__dict__.update(optimizer.__dict__)
    second.state = defaultdict(dict)
    second.param_groups = []
    return second


def _is_large(parameter: torch.Tensor, value: object) -> bool:
    """Whether it is kept of each element."""
    return isinstance(value, torch.Tensor) and value.shape == parameter.shape


def _is_alike(parameter: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both lie in memory in the same order, without gaps."""
    return other.stride() == parameter.stride() and other.layout == torch.strided and _is_dense(parameter)


def _is_dense(parameter: torch.Tensor) -> bool:
    dense: bool = parameter.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(parameter)
    return dense


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
