"""The laws of a contribution, tried on a few tensors at launch: a pure function of gradients and state that keeps their shapes.

It cannot see whether a model still learns with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from orchestrator.optim.contributions import CONTRIBUTIONS
from orchestrator.optim.transforms import State, Transform

_SHAPES = ((3, 4), (4,), (2, 1, 3))
_STEPS = 3


def problems(name: str, options: Mapping[str, Any]) -> list[str]:
    """Which law a contribution breaks, a sentence; empty when none."""
    return CONTRIBUTIONS.judge(name, lambda: _broken(CONTRIBUTIONS.build(name, options)()))


def _broken(transform: Transform | None) -> str | None:
    if transform is None:
        return None
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.randn(shape, generator=generator) for shape in _SHAPES]
    state = transform.init(parameters)
    if not isinstance(state, Mapping) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        return "has a state that is no mapping from names to tensors: init() returns {name: tensor}"
    for step in range(_STEPS):
        gradients: list[torch.Tensor | None] = [torch.randn(shape, generator=generator) for shape in _SHAPES]
        gradients[step % len(gradients)] = None  # a parameter that this micro-batch does not use
        before = _copies(gradients), _copies(state.values())
        result, following = transform.update(gradients, state)
        again, others = transform.update(gradients, state)
        if not (_equal(before[0], gradients) and _equal(before[1], list(state.values()))):
            return "changes gradients or state in place: return new tensors"
        if not _equal(result, again):
            return "gives other values for the same gradients and the same state: it must keep nothing but its state"
        made, later = _places(result, following.values()), _places(again, others.values())
        if (made & later) - _places(gradients, state.values()):
            return "returns tensors in the memory of those before, which may wait to be added up: return new tensors"
        if not _alike(gradients, result):
            return "returns gradients of another number, shape or type than it got"
        if not _same_names(state, following):
            return "returns a state with other names, shapes or types than that of init()"
        state = following
    return None


def _copies(tensors: Any) -> list[torch.Tensor | None]:
    return [None if tensor is None else tensor.clone() for tensor in tensors]


def _places(*tensors: Iterable[torch.Tensor | None]) -> set[int]:
    """The addresses of the memory in which these lie."""
    return {each.untyped_storage().data_ptr() for some in tensors for each in some if each is not None and each.numel()}


def _equal(first: Sequence[torch.Tensor | None], second: Sequence[torch.Tensor | None]) -> bool:
    return len(first) == len(second) and all(
        one is other or (one is not None and other is not None and torch.equal(one, other))
        for one, other in zip(first, second, strict=True)
    )


def _alike(gradients: Sequence[torch.Tensor | None], result: Sequence[torch.Tensor | None]) -> bool:
    return len(gradients) == len(result) and all(
        other is None or (one is not None and (one.shape, one.dtype) == (other.shape, other.dtype))
        for one, other in zip(gradients, result, strict=True)
    )


def _same_names(state: State, following: State) -> bool:
    kinds = [{name: (tensor.shape, tensor.dtype) for name, tensor in each.items()} for each in (state, following)]
    return kinds[0] == kinds[1]
