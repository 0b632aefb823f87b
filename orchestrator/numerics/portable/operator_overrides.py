"""Operators that are computed otherwise under portable arithmetic, for the whole process.

- The square root of MKL is an approximation that is refined, and begins with an instruction whose bits Intel and AMD define
  otherwise. numpy takes the processor's root, which IEEE 754 wants correctly rounded. All optimizers that need a root (Adam and
  AdamW among them) and whatever a model calls come through the same entry of torch's dispatcher.
- x ** 0.5 is a square root of its own in torch.
- oneDNN's LSTM approximates its gates in the same way. torch has another one, of products and element-wise functions.

`install` is safe to call twice; `remove` puts torch's own back, for a process that computes natively afterwards.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor

_ROOTS = (torch.float32, torch.float64)
_installed: dict[str, Any] = {}


def install() -> None:
    """Raises nothing; to be called before the first step, from the thread that computes."""
    if _installed:
        return
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of each kernel that is replaced
        for name, kernel in (("sqrt", sqrt), ("sqrt_", sqrt_), ("pow.Tensor_Scalar", power), ("pow_.Scalar", power_)):
            library.impl(name, kernel, "CPU", allow_override=True)  # type: ignore[no-untyped-call]
    _installed["library"] = library
    places: tuple[Any, ...] = (torch, torch._VF)
    for place in places:
        _installed[place.__name__] = place, place.lstm
        place.lstm = _without_onednn(place.lstm)


def remove() -> None:
    """Safe to call twice."""
    if not _installed:
        return
    del _installed["library"]  # with which torch takes its kernels back
    for place, function in _installed.values():
        place.lstm = function
    _installed.clear()


def installed() -> bool:
    return bool(_installed)


def sqrt(x: Tensor) -> Tensor:
    if x.dtype not in _ROOTS:
        return torch.sqrt(x, out=torch.empty_like(x, dtype=torch.result_type(x, 0.5)))
    return _root(x, torch.empty_like(x))


def sqrt_(x: Tensor) -> Tensor:
    return _root(x, x) if x.dtype in _ROOTS else torch.sqrt(x, out=x)


def power(x: Tensor, exponent: complex) -> Tensor:
    if exponent == 0.5 and x.dtype in _ROOTS:
        return sqrt(x)
    return torch.pow(x, exponent, out=torch.empty_like(x, dtype=torch.result_type(x, exponent)))


def power_(x: Tensor, exponent: complex) -> Tensor:
    if exponent == 0.5 and x.dtype in _ROOTS:
        return _root(x, x)
    return torch.pow(x, exponent, out=x)


def _root(x: Tensor, out: Tensor) -> Tensor:
    """Correctly rounded; of a number below zero NaN, as torch has it."""
    x = x.detach().resolve_neg()
    with numpy.errstate(invalid="ignore"):
        numpy.sqrt(x.numpy(), out=out.detach().numpy())
    return out


def _without_onednn(lstm: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(lstm)
    def call(*arguments: Any) -> Any:
        onednn: Any = torch.backends.mkldnn
        enabled = onednn.enabled
        onednn.enabled = False
        try:
            return lstm(*arguments)
        finally:
            onednn.enabled = enabled

    return call
