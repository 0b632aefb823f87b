"""Functions of single elements: arithmetic, activations, special functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

from orchestrator.numerics.portable.conformance.drawing import Case

_LENGTH = 5003  # more than a few vectors, and a rest


def _of(function: Callable[..., Any]) -> Case:
    return lambda d: d.both(function, d(_LENGTH))


def _of_positive(function: Callable[..., Any]) -> Case:
    return lambda d: d.both(function, d.positive(_LENGTH))


def _within(function: Callable[..., Any], low: float, high: float) -> Case:
    return lambda d: d.both(function, d.uniform(_LENGTH, low=low, high=high))


def _of_two(function: Callable[..., Any]) -> Case:
    return lambda d: d.both(function, d(61, 83), d.positive(83))


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "relu": F.relu, "relu6": F.relu6, "leaky relu": F.leaky_relu, "elu": F.elu, "selu": F.selu, "celu": F.celu,
    "gelu": F.gelu, "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "mish": F.mish,
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "softplus": F.softplus, "softsign": F.softsign,
    "hardtanh": F.hardtanh, "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish, "hardshrink": F.hardshrink,
    "softshrink": F.softshrink, "tanhshrink": F.tanhshrink, "logsigmoid": F.logsigmoid,
    "threshold": lambda x: F.threshold(x, 0.1, 0),
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan,
    "atan": torch.atan, "sinh": torch.sinh, "cosh": torch.cosh, "asinh": torch.asinh, "erf": torch.erf, "erfc": torch.erfc,
    "sinc": torch.sinc, "i0": torch.i0, "abs": torch.abs, "square": torch.square, "clamp": lambda x: x.clamp(-1, 1),
    "round": lambda x: x.round() * x, "nan to num": torch.nan_to_num, "cube": lambda x: x**3, "sign": lambda x: x.sign() * x,
    "square with sgn": lambda x: x.sgn() * x * x, "fraction": torch.frac,
}  # fmt: skip
OF_POSITIVE: dict[str, Callable[..., Any]] = {
    "log": torch.log, "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p, "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal, "power 0.5": lambda x: x**0.5, "power -0.5": lambda x: x**-0.5,
    "power 0.7": lambda x: x**0.7,
    "power of a number": lambda x: 1.7**x, "lgamma": torch.lgamma, "digamma": lambda x: torch.special.gammaln(x + 1),
    "xlogy": lambda x: torch.xlogy(x, x), "acosh": lambda x: torch.acosh(x + 1), "sqrt float64": lambda x: x.double().sqrt(),
    "sqrt bfloat16": lambda x: x.bfloat16().sqrt(),
}  # fmt: skip
OF_TWO: dict[str, Callable[..., Any]] = {
    "divide": torch.div, "maximum": torch.maximum, "minimum": torch.minimum, "atan2": torch.atan2, "hypot": torch.hypot,
    "remainder": torch.remainder, "fmod": torch.fmod, "logaddexp": torch.logaddexp, "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "multiply": torch.mul, "add scaled": lambda x, y: torch.add(x, y, alpha=0.3), "power": lambda x, y: (x.abs() + 0.1) ** y,
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.3), "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=0.3),
    "where": lambda x, y: torch.where(x > 0, x, y.expand_as(x)), "copysign": torch.copysign,
    "prelu": lambda x, y: F.prelu(x, y),
    "glu": lambda x, y: F.glu(torch.cat([x, x * y], -1)), "swiglu": lambda x, y: F.silu(x) * (x * y),
}  # fmt: skip

CASES: dict[str, Case] = {
    **{name: _of(function) for name, function in {**ACTIVATIONS, **FUNCTIONS}.items()},
    **{name: _of_positive(function) for name, function in OF_POSITIVE.items()},
    **{name: _of_two(function) for name, function in OF_TWO.items()},
    "asin": _within(torch.asin, -0.99, 0.99),
    "acos": _within(torch.acos, -0.99, 0.99),
    "atanh": _within(torch.atanh, -0.99, 0.99),
    "erfinv": _within(torch.erfinv, -0.99, 0.99),
    "logit": _within(torch.logit, 0.01, 0.99),
    "exp float64": lambda d: d.both(torch.exp, d(_LENGTH).double()),
    "exp bfloat16": lambda d: d.both(torch.exp, d(_LENGTH).bfloat16()),
    "sqrt strided": lambda d: d.both(lambda x: x.t()[::2].sqrt(), d.positive(61, 83)),
    "sigmoid strided": lambda d: d.both(lambda x: x.t()[::2].sigmoid(), d(61, 83)),
    "complex product": lambda d: d.both(
        lambda a, b: torch.view_as_real(torch.complex(a, b) * torch.complex(b, a)), d(999), d(999)
    ),
    "polar": lambda d: d.both(lambda a, b: torch.view_as_real(torch.polar(a, b)), d.positive(999), d(999)),
    "complex magnitude": lambda d: d.both(lambda a, b: torch.complex(a, b).abs(), d(999), d.positive(999)),
    "autocast bfloat16": lambda d: d.both(_autocast, d(33, 40), d(20, 40)),
}


def _autocast(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.linear(x, w).float()
