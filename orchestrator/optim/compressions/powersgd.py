"""`compression: powersgd`: of each matrix of gradients a product of two thin ones. See `low_rank.py`, which needs torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from orchestrator.optim.compressions.codec import Codec, Model


def powersgd(
    model: Model,
    *,
    rank: Annotated[int, Field(ge=1, description="Columns of the two thin matrices that stand for a matrix.")] = 4,
    error_feedback: Annotated[
        bool, Field(description="Whether a shard adds what was dropped to its next gradient.")
    ] = True,
    warmup: Annotated[int, Field(ge=0, description="First steps of exact sums, as without compression.")] = 0,
    saving: Annotated[
        float,
        Field(ge=1, description="How many times smaller a matrix has to become; one that does not is summed exactly."),
    ] = 1.0,
    reset: Annotated[
        int | None,
        Field(ge=2, description="One in so many steps is of exact sums, also of what shards keep; null: none."),
    ] = None,
) -> Codec:
    """Each matrix of gradients travels as a product of two thin matrices."""
    from orchestrator.optim.compressions.low_rank import LowRank

    return LowRank(model, rank, error_feedback=error_feedback, warmup=warmup, saving=saving, reset=reset)
