"""A weighted mean of the members. Beginning with none, the member with which the loss of the whole becomes least is added, over
and over, the same one more than once if need be; a member's weight is how often it was added by the moment at which the loss
was least. Nothing is drawn and nothing differentiated, so the weights are whole shares and come out the same each time.

Source: Caruana, Niculescu-Mizil, Crew, Ksikes, "Ensemble Selection from Libraries of Models" (2004), sections 2.1 and 2.2.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from orchestrator.worker.ensemble.combinations.combination import Loss, equal, weighted_mean

if TYPE_CHECKING:
    from torch import Tensor

Rounds = Annotated[int, Field(ge=1, le=1000, description="How often a member is added.")]


class Weighted:
    chooses = True

    def __init__(self, members: int, *, rounds: Rounds = 20) -> None:
        self._members = members
        self._rounds = rounds

    def weigh(self, loss: Loss) -> list[float]:
        counts = [0] * self._members
        best, kept = math.inf, equal(self._members)
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
        return weighted_mean(outputs, weights)


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf
