"""Combinations: how the members of an ensemble are made one.

A combination is a class, `name(members: int, *, option, ...)`, with three things (`Combination`): whether it chooses weights on
validation samples, how it does so, and what it makes of the members' outputs. It knows neither files nor models. Adding one is
a class here and a line in `COMBINATIONS`; `combination_laws.py` has what each has to keep to, a user's own too.

    mean       the mean of the members' probabilities
    vote       each member has one vote; of equal ones the mean probability decides
    weighted   a weighted mean, whose weights are chosen on half of the validation samples

Shapes, M members: outputs (M, rows, ..., classes) float64, probabilities whose last dimension adds up to one, or with
`ensemble.output: values` any numbers (M, rows, ...); weights (M,) float64, 0 or more, that add up to one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Protocol

from pydantic import Field

from orchestrator.common.registry import Table

if TYPE_CHECKING:
    from torch import Tensor

# The loss of the whole with these weights, over the samples that weights are chosen on.
Loss = Callable[[Sequence[float]], float]
Rounds = Annotated[int, Field(ge=1, le=1000, description="How often a member is added.")]


class Combination(Protocol):
    """A way to make one prediction of those of the members. chooses: whether weights are chosen on validation samples, which
    are then not among those that it is judged by."""

    chooses: bool

    def weigh(self, loss: Loss) -> list[float]:
        """The weights of the members. `loss` is not to be called unless it chooses."""

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """(rows, ..., classes): of the whole, of the same kind as the outputs of a member."""


class Equal:
    """The two parts of a combination whose members count alike."""

    chooses = False

    def __init__(self, members: int) -> None:
        self._members = members

    def weigh(self, loss: Loss) -> list[float]:  # noqa: ARG002
        return _equal(self._members)


class Mean(Equal):
    """The mean of the members' probabilities, or values.

    Source: Lakshminarayanan, Pritzel, Blundell, "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles"
    (2017), section 2.4.
    """

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        return _weighted_mean(outputs, weights)


class Vote(Equal):
    """Each member votes for its most probable class. The result is shares of M + 1 votes. The last vote is divided among the
    classes as the members' mean probability is. So it decides between classes with equal votes, never against a majority, and
    no class has the probability 0. A member for which two classes are equally probable votes for the first."""

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        chosen = outputs.argmax(-1, keepdim=True)
        votes = outputs.new_zeros(outputs.shape).scatter(-1, chosen, 1.0).sum(0)
        return (votes + _weighted_mean(outputs, weights)) / (len(outputs) + 1)


class Weighted:
    """A weighted mean of the members. Members are added one after the other, each time the one with which the loss of the
    whole becomes least; the same one may be added more than once. A member's weight is how often it was added by the moment
    at which the loss was least. Nothing is drawn and nothing differentiated, so the weights are whole shares and come out the
    same each time.

    Source: Caruana, Niculescu-Mizil, Crew, Ksikes, "Ensemble Selection from Libraries of Models" (2004), sections 2.1 and 2.2.
    """

    chooses = True

    def __init__(self, members: int, *, rounds: Rounds = 20) -> None:
        self._members = members
        self._rounds = rounds

    def weigh(self, loss: Loss) -> list[float]:
        counts = [0] * self._members
        best, kept = math.inf, _equal(self._members)
        for added in range(1, self._rounds + 1):
            tried = [
                _finite(loss([(count + (each == member)) / added for each, count in enumerate(counts)]))
                for member in range(self._members)
            ]
            chosen = min(range(self._members), key=lambda member: (tried[member], member))
            counts[chosen] += 1
            if tried[chosen] < best:
                best, kept = tried[chosen], [count / added for count in counts]
        return kept

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        return _weighted_mean(outputs, weights)


COMBINATIONS: Table[Callable[..., Combination]] = Table(
    "ensemble.combine", {"mean": Mean, "vote": Vote, "weighted": Weighted}
)


def _equal(members: int) -> list[float]:
    return [1.0 / members] * members


def _weighted_mean(outputs: Tensor, weights: Tensor) -> Tensor:
    """Added up in the order of the members, so that no kernel's order of summing counts."""
    total = outputs[0] * weights[0]
    for member in range(1, len(outputs)):
        total = total + outputs[member] * weights[member]
    return total


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf
