"""Checks of what the user's loss() and metrics() return. An error names the function and the micro-batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch

from orchestrator.errors import NonFinite, PipelineRaised

_SMALLEST_WEIGHT, _LARGEST_WEIGHT = 1e-100, 1e100  # so that no product with a float32 leaves the range of float64
NON_FINITE_REMEDY = (
    "lower optimizer.lr, set gradient.clip (of local steps: local.optimizer.lr, local.clip), or look at the samples of this "
    "micro-batch"
)


def check_finite(mean: float, where: str) -> None:
    """Raises NonFinite. mean: the loss of the micro-batch."""
    if not math.isfinite(mean):
        raise loss_not_finite(mean, where)


def loss_not_finite(mean: float, where: str) -> NonFinite:
    return NonFinite(f"the loss is {mean} at {where}", NON_FINITE_REMEDY, code="loss.value")


def first_nan(model: torch.nn.Module) -> str | None:
    """The first parameter that holds NaN, of those that are here."""
    return next(
        (
            name
            for name, each in model.named_parameters()
            if type(each) is torch.nn.Parameter and not each.is_meta and bool(each.isnan().any())
        ),
        None,
    )


def mean_and_weight(returned: Any, rows: int, where: str) -> tuple[torch.Tensor, float]:
    """Check what loss() returned: a scalar float tensor, alone or with its weight (rule A5)."""
    loss, weight = loss_and_weight(returned, rows, where)
    return loss, weight_of(weight, where)


def loss_and_weight(returned: Any, rows: int, where: str) -> tuple[torch.Tensor, Any]:
    """As `mean_and_weight`, without looking at any value."""
    loss, weight = returned if isinstance(returned, Sequence) and len(returned) == 2 else (returned, rows)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        raise PipelineRaised(
            f"loss() ({where}) returned {_kind(loss)}",
            "return a scalar float tensor, or (scalar tensor, weight)",
            code="pipeline.loss",
        )
    if isinstance(weight, torch.Tensor) and weight.numel() == 1 and weight.requires_grad:
        raise PipelineRaised(
            f"loss() ({where}) returned a pair whose second part follows from the parameters, as a part of a loss does, and it "
            "would count as the weight",
            "return the mean alone, or (mean, weight) with the weight by its detach(); parts of a loss belong into metrics()",
            code="pipeline.loss-weight-trained",
        )
    return loss if loss.dim() == 0 else loss.reshape(()), weight


def kept(returned: Any) -> Any:
    """A copy of what loss() returned: metrics() may write into the same memory."""
    if isinstance(returned, (tuple, list)) and len(returned) == 2:
        return tuple(map(kept, returned))
    if isinstance(returned, torch.Tensor):
        return returned.clone()
    return returned.copy() if isinstance(returned, numpy.ndarray) else returned


def is_late(weight: Any, loss: torch.Tensor) -> bool:
    """Whether a look at this weight would wait for the device that has computed the loss."""
    is_number = isinstance(weight, torch.Tensor) and weight.numel() == 1 and not weight.is_complex()
    return is_number and weight.device == loss.device


def weight_of(weight: Any, where: str) -> float:
    value = number_of(weight)
    if value is None:
        raise PipelineRaised(
            f"loss() ({where}) returned a pair whose second part, {_kind(weight)}, is no weight",
            "return the mean alone, or (mean, weight) with one number as the weight; other outputs belong into metrics()",
            code="pipeline.loss-pair",
        )
    if value != 0 and not _SMALLEST_WEIGHT <= value <= _LARGEST_WEIGHT:
        raise PipelineRaised(
            f"loss() ({where}) returned the weight {value}",
            f"a weight is zero, or a number between {_SMALLEST_WEIGHT:g} and {_LARGEST_WEIGHT:g}",
            code="pipeline.loss-weight",
        )
    return value


def numbers_of(metrics: Any, where: str) -> dict[str, float]:
    """Check what metrics() returned, and sort it by name: scalars, or numbers of Python or numpy."""
    if not isinstance(metrics, Mapping):
        raise PipelineRaised(
            f"metrics() ({where}) returned {_kind(metrics)}",
            "return {name: its mean over the batch}; {} if there is none",
            code="pipeline.metrics",
        )
    if "loss" in metrics:
        raise PipelineRaised(
            f"metrics() ({where}) returned one named 'loss'",
            "the loss is reported anyway; choose another name",
            code="pipeline.metrics-loss",
        )
    strange = next((name for name in metrics if not isinstance(name, str)), None)
    if strange is not None:
        raise PipelineRaised(
            f"metrics() ({where}) returned a metric named by {_kind(strange)}",
            "name each by a text",
            code="pipeline.metrics-key",
        )
    numbers = {}
    for name, value in sorted(metrics.items()):
        number = number_of(value)
        if number is None:
            raise PipelineRaised(
                f"metrics() ({where}) returned {_kind(value)} for {name!r}",
                "return one number for each name: its mean over the batch",
                code="pipeline.metrics-value",
            )
        numbers[name] = number
    return numbers


def number_of(value: Any) -> float | None:
    """A number of Python, numpy or torch; None where it is none."""
    try:
        return float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        return None


def _kind(value: Any) -> str:
    shape = f" of shape {tuple(value.shape)}, {value.dtype}" if isinstance(value, torch.Tensor) else ""
    return f"a {type(value).__name__}{shape}"
