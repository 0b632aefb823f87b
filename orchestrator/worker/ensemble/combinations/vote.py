"""Each member votes for its most probable class. The result is shares of M + 1 votes: the last one is divided among the
classes as the members' mean probability is, so that it decides where votes are equal, never against a majority, and no
class has the probability 0. A member for which two classes are equally probable votes for the first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.worker.ensemble.combinations.combination import Equal, weighted_mean

if TYPE_CHECKING:
    from torch import Tensor


class Vote(Equal):
    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        chosen = outputs.argmax(-1, keepdim=True)
        votes = outputs.new_zeros(outputs.shape).scatter(-1, chosen, 1.0).sum(0)
        return (votes + weighted_mean(outputs, weights)) / (len(outputs) + 1)
