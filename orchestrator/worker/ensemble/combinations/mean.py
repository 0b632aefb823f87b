"""The mean of the members' probabilities, or values.

Source: Lakshminarayanan, Pritzel, Blundell, "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles"
(2017), section 2.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.worker.ensemble.combinations.combination import Equal, weighted_mean

if TYPE_CHECKING:
    from torch import Tensor


class Mean(Equal):
    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        return weighted_mean(outputs, weights)
