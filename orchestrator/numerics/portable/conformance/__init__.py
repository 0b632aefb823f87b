"""The page of operators: small computations over fixed numbers, whose results are known (`known.json`, by `checking`).

    PAGE["conv2d"](Draw("conv2d"))        # tensors: outputs, then gradients

A case draws its inputs from `Draw`, whose numbers are made of integers by exact operations only, so they are the same on
every processor. A new case is one line in one of the modules of this package; then `known.json` is made again
(docs/portable.md).
"""

from __future__ import annotations

from orchestrator.numerics.portable.conformance import (
    attention,
    convolutions,
    elementwise,
    indexing,
    linear,
    losses,
    norms,
    optimizers,
    pooling,
    random,
    recurrent,
    reductions,
    spectral,
)
from orchestrator.numerics.portable.conformance.drawing import Case, Draw

__all__ = ["PAGE", "Case", "Draw"]

PAGE: dict[str, Case] = {
    **linear.CASES,
    **convolutions.CASES,
    **pooling.CASES,
    **norms.CASES,
    **attention.CASES,
    **recurrent.CASES,
    **elementwise.CASES,
    **reductions.CASES,
    **losses.CASES,
    **indexing.CASES,
    **spectral.CASES,
    **random.CASES,
    **optimizers.CASES,
}
