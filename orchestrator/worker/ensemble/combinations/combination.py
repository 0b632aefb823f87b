"""What a combination of members is.

Shapes, M members: outputs (M, rows, ..., classes) float64, probabilities whose last dimension adds up to one, or with
`ensemble.output: values` any numbers (M, rows, ...); weights (M,) float64, 0 or more, that add up to one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

# Of the whole with these weights, over the samples that weights are chosen on.
Loss = Callable[[Sequence[float]], float]


class Combination(Protocol):
    """chooses: whether weights are chosen on validation samples, which are then not among those that it is judged by."""

    chooses: bool

    def weigh(self, loss: Loss) -> list[float]:
        """The weights of the members. `loss` is not to be called unless it chooses."""

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """(rows, ..., classes): of the whole, of the same kind as the outputs of a member."""


Build = Callable[..., Combination]


def equal(members: int) -> list[float]:
    return [1.0 / members] * members


class Equal:
    """The two parts of a combination whose members count alike."""

    chooses = False

    def __init__(self, members: int) -> None:
        self._members = members

    def weigh(self, loss: Loss) -> list[float]:  # noqa: ARG002
        return equal(self._members)


def weighted_mean(outputs: Tensor, weights: Tensor) -> Tensor:
    """Added up in the order of the members, so that no kernel's order of summing counts."""
    total = outputs[0] * weights[0]
    for member in range(1, len(outputs)):
        total = total + outputs[member] * weights[member]
    return total
