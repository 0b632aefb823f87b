"""`compression: quantize`: gradients as integers of 8 or 16 bits, whose sums fit the same integers.

Each tensor has one spacing, from the largest weighted element that any shard has in this very step, so that the integers of
all shards mean the same and add up without loss. Each shard adds its rounding error to its next gradient (error feedback), so
that small elements are late and not lost.

Source: Seide et al. (2014) and SwitchML (2021), see `numerics/levels.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from orchestrator.common.checked_values import Must
from orchestrator.optim.compressions.codec import Agreement, Held, Levels, Model, Phase, Result, Rows

if TYPE_CHECKING:
    import torch

    from orchestrator.optim.transforms import State

BITS: Final = (8, 16)


class Quantize:
    """Gradients travel as integers of 8 or 16 bits. Implements `codec.Codec`."""

    def __init__(
        self,
        model: Model,
        *,
        bits: Annotated[
            int, Must("8 or 16", BITS.__contains__), Field(description="Bits of each element that is sent.")
        ] = 8,
        error_feedback: Annotated[
            bool, Field(description="Whether a shard adds what was dropped to its next gradient.")
        ] = True,
    ) -> None:
        elements = tuple(math.prod(shape) for shape in model.shapes)
        self.phases: Sequence[Phase] = (Levels(elements, bits),)
        self.kept: Sequence[int] = tuple(range(len(elements))) if error_feedback else ()

    def replicated(self) -> State:
        return {}

    def encode(self, phase: int, agreement: Agreement, held: Sequence[Held], earlier: Sequence[Result]) -> Rows:  # noqa: ARG002
        return Rows([each.tensors for each in held], agreement.largest, keeps=bool(self.kept))

    def decode(self, agreement: Agreement, results: Sequence[Result], mean: Sequence[torch.Tensor]) -> State:  # noqa: ARG002
        for i, vector in enumerate(mean):
            results[0].write(i, vector)
        return {}


def most_shards(bits: int) -> int:
    """With more of them a shard would have fewer than seven levels on either side of zero."""
    return 1 << (bits - 4)
