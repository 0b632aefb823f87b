"""The factor on the learning rates for a batch of another size than the one they were chosen for. It multiplies the
schedule's, so a warm-up rises to the scaled rate.

Source: linear: Goyal et al., "Accurate, Large Minibatch SGD" (2017); square root: Krizhevsky, "One weird trick for
parallelizing convolutional neural networks" (2014), and for Adam Malladi et al., "On the SDEs and Scaling Rules for Adaptive
Gradient Algorithms" (2022).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from orchestrator.common.values import Steps


@dataclass(frozen=True)
class Scaling:
    """The factor on learning rates for another batch size. base: the batch size for which the rates were chosen; batch_size:
    that of each step."""

    how: Literal["linear", "sqrt"]
    base: int
    batch_size: Steps

    def at(self, step: int) -> float:
        """The factor at a step: larger than 1 where its batch is larger than the base."""
        times = self.batch_size.at(step) / self.base
        return times if self.how == "linear" else math.sqrt(times)
