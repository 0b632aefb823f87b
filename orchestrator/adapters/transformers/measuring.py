"""A function such as Trainer's compute_metrics, where it is a mean over the rows of a batch.

A run has no batch of all predictions: each worker evaluates some, and means are put together. So each batch is halved, too, and
the function is refused where its halves do not make up the whole, as with F1 or a correlation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from orchestrator.adapters.transformers.library import package
from orchestrator.errors import PipelineRaised

_NEAR = 1e-6
_REMEDY = (
    "in a subclass of orchestrator.adapters.transformers:Trainable write metrics(self, model, batch), a mean over a batch, or "
    "on_evaluation(self, step, metrics, model), which may go through the whole validation set"
)


def measured(function: Callable[[Any], Mapping[str, float]], predictions: Any, labels: Any) -> dict[str, torch.Tensor]:
    """The values for one batch. predictions, labels: tensors, or tuples of these. Raises PipelineRaised where they are no means
    over rows."""
    prediction = package("transformers").EvalPrediction
    rows = _rows(predictions)

    def of(begin: int, end: int) -> Mapping[str, float]:
        return function(prediction(predictions=_part(predictions, begin, end), label_ids=_part(labels, begin, end)))

    whole = of(0, rows)
    if rows > 1:
        half = rows // 2
        first, second = of(0, half), of(half, rows)
        for name, value in whole.items():
            parts = (first[name] * half + second[name] * (rows - half)) / rows
            if not math.isclose(value, parts, rel_tol=_NEAR, abs_tol=_NEAR):
                raise PipelineRaised(
                    f"metrics: {name!r} is no mean over the rows: {value:g} for a batch, {parts:g} as the mean of its halves",
                    _REMEDY,
                    code="transformers.metric-no-mean",
                )
    return {name: torch.tensor(float(value), dtype=torch.float64) for name, value in whole.items()}


def _rows(values: Any) -> int:
    return len(values[0] if isinstance(values, tuple) else values)


def _part(values: Any, begin: int, end: int) -> Any:
    """As arrays of numpy."""
    if isinstance(values, tuple):
        return tuple(_part(each, begin, end) for each in values)
    part = values[begin:end].detach().cpu()
    return (part.float() if part.is_floating_point() else part).numpy()  # numpy has no bfloat16
