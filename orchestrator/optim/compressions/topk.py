"""`compression: topk`: of each tensor the few largest elements of each shard.

Shards choose different elements, so these are gathered and not summed: the bytes grow with the shards.

Source: Lin, Han, Mao, Wang and Dally, "Deep gradient compression" (2018), also for the ratio that falls to its value during the
first steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from orchestrator.optim.compressions.codec import Agreement, Held, Largest, Model, Phase, Result, Rows

if TYPE_CHECKING:
    import torch

    from orchestrator.optim.transforms import State

_FIRST: Final = 0.25  # the ratio with which a warm-up begins


class TopK:
    """Each shard sends the largest elements of each tensor only. Implements `codec.Codec`."""

    def __init__(
        self,
        model: Model,
        *,
        ratio: Annotated[float, Field(gt=0, le=1, description="The part of each tensor that a shard sends.")] = 0.01,
        warmup: Annotated[
            int, Field(ge=0, description="Steps in which the ratio falls from a quarter to its value.")
        ] = 0,
        error_feedback: Annotated[
            bool, Field(description="Whether a shard adds what was dropped to its next gradient.")
        ] = False,
    ) -> None:
        self._elements = tuple(math.prod(shape) for shape in model.shapes)
        self._ratio, self._warmup = ratio, warmup
        self.phases: Sequence[Phase] = (Largest(self._elements),)
        self.kept: Sequence[int] = tuple(range(len(self._elements))) if error_feedback else ()

    def replicated(self) -> State:
        return {}

    def encode(self, phase: int, agreement: Agreement, held: Sequence[Held], earlier: Sequence[Result]) -> Rows:  # noqa: ARG002
        ratio = self.ratio(agreement.step)
        counts = [math.ceil(ratio * elements) for elements in self._elements]
        rows = [each.tensors for each in held]
        return Rows(rows, agreement.largest, keeps=bool(self.kept), counts=counts)

    def decode(self, agreement: Agreement, results: Sequence[Result], mean: Sequence[torch.Tensor]) -> State:  # noqa: ARG002
        for i, vector in enumerate(mean):
            results[0].write(i, vector)
        return {}

    def ratio(self, step: int) -> float:
        """In this step."""
        if step >= self._warmup or self._ratio >= _FIRST:
            return self._ratio
        return float(_FIRST * (self._ratio / _FIRST) ** ((step + 1) / (self._warmup + 1)))
