"""Cross-entropy over images on CUDA, which torch adds up in no fixed order there and therefore refuses.

`F.cross_entropy`, `F.nll_loss` and their modules end in two operators of torch's dispatcher where inputs have more than two
dimensions. Their CUDA kernels are put in place here, of operations that have an order: what the targets pick is gathered,
masked and summed; a gradient is written by comparison. Other devices, other losses and torch's functions stay as they are.
Elements of a gradient are those of torch's kernel for processors, to the bit; the mean is summed in another order.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

_NONE, _MEAN = 0, 1  # reductions as torch counts them
_HALVES = (torch.float16, torch.bfloat16)  # which add up in float32
_installed: list[Any] = []


def install() -> None:
    """Safe to call twice."""
    if not _installed:
        _installed.append(registered("CUDA"))


def registered(key: str) -> Any:
    """The kernels stand at this key of the dispatcher as long as somebody holds what is returned."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of each kernel that is replaced
        for name, kernel in (("nll_loss2d_forward", forward), ("nll_loss2d_backward", backward)):
            library.impl(name, kernel, key, allow_override=True)  # type: ignore[no-untyped-call]
    return library


def forward(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int) -> tuple[Tensor, Tensor]:
    """The loss, and the sum of the weights that a mean is divided by. x: (N, C, H, W), logarithms; target: (N, H, W)."""
    _check(x, target, weight)
    skipped, classes = _classes(target, ignored)
    losses = -x.gather(1, classes.unsqueeze(1)).squeeze(1)
    weights = None if weight is None else weight[classes].masked_fill(skipped, 0)
    if weights is not None:
        losses = losses * weights
    losses = losses.masked_fill(skipped, 0)
    if reduction == _NONE:
        return losses, x.new_zeros(())
    wide = _wide(x)
    total = (~skipped).sum().to(wide) if weights is None else weights.sum(dtype=wide)
    whole = losses.sum(dtype=wide)
    return (whole / total if reduction == _MEAN else whole).to(x.dtype), total


def backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int, total: Tensor
) -> Tensor:
    """The gradient of x. grad: of the loss; total: as `forward` gave it."""
    skipped, classes = _classes(target, ignored)
    share = grad / total.to(_wide(x)) if reduction == _MEAN else grad
    picked = (-share if weight is None else -weight[classes] * share).expand_as(target).masked_fill(skipped, 0)
    numbers = torch.arange(x.shape[1], device=x.device).view(1, -1, 1, 1)
    return torch.where(classes.unsqueeze(1) == numbers, picked.to(x.dtype).unsqueeze(1), 0)


def _classes(target: Tensor, ignored: int) -> tuple[Tensor, Tensor]:
    """Which targets are passed over, and the classes, for those any."""
    skipped = target == ignored
    return skipped, target.masked_fill(skipped, 0).long()


def _wide(x: Tensor) -> torch.dtype:
    return torch.float32 if x.dtype in _HALVES else x.dtype


def _check(x: Tensor, target: Tensor, weight: Tensor | None) -> None:
    """Refuse shapes that do not match: gathering would take a smaller target. Raises RuntimeError, as torch's kernel does."""
    if x.dim() != 4 or target.dim() != 3 or x.shape[0] != target.shape[0] or x.shape[2:] != target.shape[1:]:
        raise RuntimeError(f"input and target batch or spatial sizes don't match: {[*target.shape]}, {[*x.shape]}")
    if weight is not None and weight.shape != x.shape[1:2]:
        raise RuntimeError(f"weight tensor should be defined either for all {x.shape[1]} classes or no classes")
