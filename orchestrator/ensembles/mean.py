"""The mean of the members' probabilities, or values.

Source: Lakshminarayanan, Pritzel, Blundell, "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles"
(2017), section 2.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.ensembles.combination import Loss, equal, weighted_mean

if TYPE_CHECKING:
    from torch import Tensor


class Mean:
    chooses = False

    def __init__(self, members: int) -> None:
        self._members = members

    def weigh(self, loss: Loss) -> list[float]:  # noqa: ARG002
        return equal(self._members)

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        return weighted_mean(outputs, weights)
