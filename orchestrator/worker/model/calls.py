"""A call of the user's loss() or metrics() on a batch that has been read, to be made by whoever has the model: by parts of it
(`pipeline_parallel`) or as a whole. It also judges what the function returned (`output_checks.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, NamedTuple

import torch

from orchestrator.numerics.staging import Arriving
from orchestrator.worker.model.output_checks import check_finite, is_late, loss_and_weight, mean_and_weight, numbers_of


class Given:
    """A training micro-batch, and the function that calls the user's loss with it, or with another one."""

    def __init__(self, arriving: Arriving, function: Callable[[Any], Any]) -> None:
        self.arriving, self.function = arriving, function

    @cached_property
    def batch(self) -> Any:
        """The micro-batch where the model computes, to which it is brought for the first that asks."""
        return self.arriving.there()


class Call(NamedTuple):
    """A call of the user's, on a batch that has been read. precision: of its products; given: of a training micro-batch."""

    function: Callable[[], Any]
    precision: Callable[[], AbstractContextManager[None]]
    rows: int
    where: str
    given: Given | None = None

    def make(self) -> Any:
        with self.precision():
            return self.function()

    def judged(self, returned: Any) -> tuple[torch.Tensor, float, float] | None:
        """Loss, its value and its weight, from what loss() returned; None where it weighs nothing. Raises PipelineRaised,
        NonFinite."""
        loss, weight = mean_and_weight(returned, self.rows, self.where)
        if weight == 0:
            return None
        mean = loss.item()
        check_finite(mean, self.where)
        return loss, mean, weight

    def judged_late(self, returned: Any) -> tuple[torch.Tensor, float | torch.Tensor, float] | None:
        """As `judged`, of a replay. The loss is not looked at, and may be infinite or NaN, unless its weight is on the
        device, too, for which this waits."""
        if is_late(returned[1], returned[0]):
            return self.judged(returned)
        loss, weight = mean_and_weight(returned, self.rows, self.where)
        loss = loss.clone()  # the next replay leaves another there
        return None if weight == 0 else (loss, loss, weight)

    def unjudged(self, returned: Any) -> tuple[torch.Tensor, Any]:
        """Loss and weight, without looking at any value. Raises PipelineRaised."""
        return loss_and_weight(returned, self.rows, self.where)

    def evaluated(self, loss: Any, metrics: Any) -> tuple[list[str], list[float]]:
        """As `PipelineAdapter.evaluate`, from what loss() and metrics() returned for this validation batch."""
        mean, weight = mean_and_weight(loss, self.rows, self.where)
        numbers = numbers_of(metrics, self.where)
        return list(numbers), [mean.item(), weight, float(self.rows), *numbers.values()]
