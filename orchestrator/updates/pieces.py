"""The step of an optimizer that works element by element, done in pieces that a processor's cache holds.

An optimizer of torch goes over parameters, gradients and state some ten times in a step, one operation after the other. Where a
tensor is larger than the cache, each of these passes reads and writes memory; piece by piece they find what they need in the
cache. No element depends on another, so no bit changes (`tests/updates/test_pieces.py`).

The optimizer that steps is a second one of the same class, over views of the first one's parameters, gradients and state. What
is not of a parameter's shape, such as the number of steps, each piece has for itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

State = dict[str, Any]

PIECE: Final = 1 << 17  # elements; with their gradients, state and what is in between, some megabytes
BY_ELEMENT: Final = frozenset(
    getattr(torch.optim, name)
    for name in (
        *("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
    )
)
_IN_ONE_PASS = ("foreach", "fused", "capturable", "differentiable")  # options for which torch goes another way


class Pieces:
    """Steps for one optimizer, whose state may be replaced between two of them. piece: so many elements at most."""

    def __init__(self, optimizer: torch.optim.Optimizer, piece: int = PIECE) -> None:
        self._optimizer = optimizer
        self._piece = piece
        self._without_state: set[torch.Tensor] = set()  # of which the optimizer keeps nothing
        self._bound: list[Any] | None = None
        self._cuts: list[_Cut] = []
        self._pieces: set[torch.Tensor] = set()  # of the cuts
        self._second = optimizer

    def step(self) -> None:
        """The optimizer's step, with the same bits."""
        if not self._fits():
            self._optimizer.step()
            return
        begun = {parameter for group in self._optimizer.param_groups for parameter in self._begin(group)}
        bound = self._binding()
        if bound != self._bound:
            self._bind()
            self._bound = bound
        for own, group in zip(self._second.param_groups, self._optimizer.param_groups, strict=True):
            own.update((key, value) for key, value in group.items() if key != "params")
        for cut in self._cuts:
            cut.take_gradient(None if cut.parameter in begun else cut.parameter.grad)
        self._second.step()
        for cut in self._cuts:
            cut.give_numbers(self._second.state)
        for small in self._second.state.keys() - self._optimizer.state.keys() - self._pieces:
            self._optimizer.state[small] = self._second.state[small]

    def _fits(self) -> bool:
        """Whether it is of those that work element by element, and some tensor is larger than a piece."""
        optimizer, large = self._optimizer, False
        if type(optimizer) not in BY_ELEMENT or _is_watched(optimizer):
            return False
        for group in optimizer.param_groups:
            if any(group.get(option) for option in _IN_ONE_PASS):
                return False
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter.numel() > self._piece:
                    large = True
                    if not parameter.is_cpu or not _is_alike(parameter, parameter.grad):
                        return False
        return large

    def _begin(self, group: dict[str, Any]) -> Iterator[torch.Tensor]:
        """The first step of large tensors, one after the other, which makes their state; gives those that were stepped."""
        state = self._optimizer.state
        for parameter in group["params"]:
            large = parameter.grad is not None and parameter.numel() > self._piece
            if not large or state.get(parameter) or parameter in self._without_state:
                continue
            made = self._stepped_first(parameter, group)
            if made:
                state[parameter] = made
            else:
                self._without_state.add(parameter)
            yield parameter

    def _stepped_first(self, parameter: torch.Tensor, group: dict[str, Any]) -> State:
        """Step each piece of it, and gather the states that the optimizer makes."""
        second, made = _another(self._optimizer), State()
        places: dict[str, tuple[torch.Tensor, ...]] = {}
        cut = _Cut.of(parameter, None, self._piece, second.state)
        cut.take_gradient(parameter.grad)
        for nth, piece in enumerate(cut.pieces):
            second.param_groups = [{**group, "params": [piece]}]
            second.step()
            for key, value in second.state.pop(piece, State()).items():
                if not _is_large(piece, value):
                    made.setdefault(key, value)
                    continue
                if nth == 0:
                    made[key] = torch.empty_like(parameter, requires_grad=False)
                    places[key] = torch.split(_in_memory(made[key]), self._piece)
                places[key][nth].copy_(value)
        return made

    def _binding(self) -> list[Any]:
        """What the views are made of. They hold its memory, so nothing else has the same address meanwhile."""
        state = self._optimizer.state
        return [
            (parameter.data_ptr(), [(key, value.data_ptr()) for key, value in _large(parameter, state.get(parameter))])
            if parameter.numel() > self._piece
            else id(state.get(parameter))
            for group in self._optimizer.param_groups
            for parameter in group["params"]
        ]

    def _bind(self) -> None:
        optimizer = self._optimizer
        self._second = second = _another(optimizer)
        self._cuts = []
        for group in optimizer.param_groups:
            parameters: list[torch.Tensor] = []
            for parameter in group["params"]:
                own = optimizer.state.get(parameter)
                alike = _is_alike(parameter, *(value for _, value in _large(parameter, own)))
                if parameter.numel() > self._piece and alike:
                    cut = _Cut.of(parameter, own, self._piece, second.state)
                    self._cuts.append(cut)
                    parameters.extend(cut.pieces)
                    continue
                parameters.append(parameter)
                if own is not None:
                    second.state[parameter] = own
            second.param_groups.append({**group, "params": parameters})
        self._pieces = {piece for cut in self._cuts for piece in cut.pieces}


@dataclass(frozen=True)
class _Cut:
    """A parameter in pieces. state: the optimizer's of the whole, None where it keeps nothing."""

    parameter: torch.Tensor
    state: State | None
    pieces: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, parameter: torch.Tensor, state: State | None, piece: int, states: dict[torch.Tensor, State]) -> _Cut:
        """states: of the pieces, which is filled."""
        pieces = tuple(torch.split(_in_memory(parameter.detach()), piece))
        if state:
            large = {key: torch.split(_in_memory(value), piece) for key, value in _large(parameter, state)}
            numbers = {key: value for key, value in state.items() if key not in large}
            for nth, part in enumerate(pieces):
                own = {key: _copied(value) if nth else value for key, value in numbers.items()}
                states[part] = {key: large[key][nth] if key in large else own[key] for key in state}
        return cls(parameter, state, pieces)

    def take_gradient(self, gradient: torch.Tensor | None) -> None:
        """None: the next step does nothing to it."""
        if gradient is None:
            for piece in self.pieces:
                piece.grad = None
            return
        for piece, part in zip(self.pieces, torch.split(_in_memory(gradient), self.pieces[0].numel()), strict=True):
            piece.grad = part

    def give_numbers(self, states: dict[torch.Tensor, State]) -> None:
        """Those of the first piece, to which that of the whole belong, are the whole's."""
        if self.state:
            first = states[self.pieces[0]]
            self.state.update(
                (key, first[key]) for key, value in self.state.items() if not _is_large(self.parameter, value)
            )


def _another(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """One of the same class with the same options, over nothing yet."""
    second = object.__new__(type(optimizer))
    second.__dict__.update(optimizer.__dict__)
    second.state = defaultdict(dict)
    second.param_groups = []
    return second


def _large(parameter: torch.Tensor, state: State | None) -> list[tuple[str, torch.Tensor]]:
    """What is kept of each element."""
    return [(key, value) for key, value in (state or {}).items() if _is_large(parameter, value)]


def _is_large(parameter: torch.Tensor, value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == parameter.shape


def _is_alike(parameter: torch.Tensor, *others: torch.Tensor) -> bool:
    """Whether all lie in memory in the same order, without gaps."""
    dense = torch.ops.aten.is_non_overlapping_and_dense(parameter)
    return dense and all(other.stride() == parameter.stride() and other.layout == torch.strided for other in others)


def _in_memory(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((tensor.numel(),), (1,))


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _is_watched(optimizer: torch.optim.Optimizer) -> bool:
    """Whether somebody is called before or after its steps, or has replaced them."""
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks) or "step" in vars(
        optimizer
    )
