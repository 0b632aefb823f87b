"""Clipping by the global L2 norm.

Every worker holds the whole summed gradient, so every worker computes the norm over whole tensors, alike (rule A6). The
gradient itself is left as it is: a peer may still be reading it. The scaled one has the bits that `clip_grad_norm_` gives.
Source: Pascanu et al., "On the difficulty of training recurrent neural networks" (2013), section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from orchestrator.numerics import foreach
from orchestrator.optim.transforms import Gradients, State


class Norm:
    """The norm of a gradient of which no worker holds all tensors: from those of the tensors, in the order of the layout, as
    `clip` finds it for whole ones, on the device where it does."""

    def __init__(self) -> None:
        self.value = torch.tensor(0.0)

    def of_tensors(self, norms: Sequence[torch.Tensor]) -> None:
        self.value = torch.linalg.vector_norm(torch.stack(list(norms)), 2.0) if norms else torch.tensor(0.0)

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.value)


class Clipping:
    """Implements `transforms.Transform`. limit: of the norm; norm: where gradients are a part of what has it, in the present
    step."""

    def __init__(self, limit: float, norm: Norm | None = None) -> None:
        self._limit = limit
        self._norm = norm

    def init(self, parameters: Sequence[torch.Tensor]) -> State:  # noqa: ARG002
        return {}

    def update(self, gradients: Gradients, state: State) -> tuple[Gradients, State]:
        return clip(gradients, self._limit, None if self._norm is None else self._norm.value), state


def clip(
    gradients: Sequence[torch.Tensor | None], limit: float, norm: torch.Tensor | None = None
) -> list[torch.Tensor | None]:
    """The gradients, scaled down together so that their norm is at most `limit`; None stays None. norm: where they are a
    part of what has it."""
    present = [gradient for gradient in gradients if gradient is not None]
    if not present:
        return list(gradients)
    norm = _norm(present) if norm is None else norm
    factor = limit / (norm + 1e-6)  # torch's term against division by zero, which shows in every bit
    if factor >= 1.0:
        return list(gradients)
    scaled = iter(foreach.products(present, factor))
    return [None if gradient is None else next(scaled) for gradient in gradients]


def _norm(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """The norm of all, which are finite. In float64 where squares overflow: scaling by limit / infinity, as torch does, would
    train nothing, in silence."""
    norm = torch.nn.utils.get_total_norm(gradients)
    if math.isfinite(norm):
        return norm
    return torch.nn.utils.get_total_norm([gradient.double() for gradient in gradients])
