"""Transforms of gradients: pairs of pure functions with explicit state, before the sum (per shard) or after it (everywhere
alike).

    state = transform.init(parameters)
    gradients, state = transform.update(gradients, state)

The arguments of `update` belong to others: it returns new tensors, or those it got. State is named tensors, so a checkpoint
can hold it.

Source: the shape is that of optax (DeepMind, 2020): `GradientTransformation` and `chain`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

Gradients = Sequence[torch.Tensor | None]
State = Mapping[str, torch.Tensor]


class Transform(Protocol):
    def init(self, parameters: Sequence[torch.Tensor]) -> State:
        """The state before the first step; {} for a transform that keeps nothing."""

    def update(self, gradients: Gradients, state: State) -> tuple[Gradients, State]:
        """The gradients to go on with, None where there is none, and the next state."""


class Chain:
    """Transforms one after the other. Implements Transform; the n-th one's state has names that begin with `n/`."""

    def __init__(self, *transforms: Transform) -> None:
        self._transforms = transforms

    def __bool__(self) -> bool:
        return bool(self._transforms)

    def init(self, parameters: Sequence[torch.Tensor]) -> State:
        states = [transform.init(parameters) for transform in self._transforms]
        return {f"{n}/{name}": tensor for n, state in enumerate(states) for name, tensor in state.items()}

    def update(self, gradients: Gradients, state: State) -> tuple[Gradients, State]:
        following: dict[str, torch.Tensor] = {}
        for n, transform in enumerate(self._transforms):
            own = {name.removeprefix(f"{n}/"): t for name, t in state.items() if name.startswith(f"{n}/")}
            gradients, own = transform.update(gradients, own)  # type: ignore[assignment]
            following.update({f"{n}/{name}": tensor for name, tensor in own.items()})
        return gradients, following
