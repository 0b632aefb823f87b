"""Draws the inputs of a case of the page, and takes its gradients."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _python_dispatch


class Draw:
    """Inputs of one case, by its name. Numbers are exact functions of random integers."""

    def __init__(self, name: str) -> None:
        self._generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))

    def __call__(self, *shape: int) -> Tensor:
        """Most near 0, from -3 to 3: the cube of what is uniform."""
        with _python_dispatch._disable_current_modes():
            uniform = self._uniform(shape)
            return uniform * uniform * uniform * 3

    def uniform(self, *shape: int, low: float = -1.0, high: float = 1.0) -> Tensor:
        with _python_dispatch._disable_current_modes():
            return (self._uniform(shape) + 1) * ((high - low) / 2) + low

    def positive(self, *shape: int) -> Tensor:
        """Numbers from about 0.01 to 4."""
        return self.uniform(*shape, low=0.01, high=4.0)

    def integers(self, below: int, *shape: int) -> Tensor:
        with _python_dispatch._disable_current_modes():
            return torch.randint(below, shape, generator=self._generator)

    def mask(self, *shape: int) -> Tensor:
        """A mask, about half of it true."""
        with _python_dispatch._disable_current_modes():
            return self._uniform(shape) > 0

    def _uniform(self, shape: Sequence[int]) -> Tensor:
        return torch.rand(tuple(shape), generator=self._generator) * 2 - 1

    def both(self, function: Callable[..., Any], *inputs: Tensor) -> list[Tensor]:
        """The outputs of a differentiable function, and the gradients with respect to its inputs and, if it is a module, to
        its parameters."""
        leaves = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in inputs]
        outputs = [out for out in _flat(function(*leaves)) if out.requires_grad]
        trained = [leaf for leaf in leaves if leaf.requires_grad]
        if isinstance(function, torch.nn.Module):
            trained += function.parameters()
        gradients = _gradients(outputs, trained, [self(*out.shape) for out in outputs])
        return [*outputs, *(gradient for gradient in gradients if gradient is not None)]

    def module(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module, with parameters that are drawn here."""
        with torch.no_grad(), _python_dispatch._disable_current_modes():
            for parameter in module.parameters():
                parameter.copy_(self._uniform(parameter.shape) / 2)
        return module


def _gradients(outputs: Sequence[Tensor], inputs: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """`torch.autograd.grad`, without its comparison of shapes, which imports sympy: half a second in each worker's start. If
    the private function below it has another name in this torch, the comparison is made."""
    below = getattr(torch.autograd.graph, "_engine_run_backward", None)
    if below is None:
        return torch.autograd.grad(outputs, inputs, given, allow_unused=True)
    keep_graph, create_graph, allow_unused = False, False, True
    return below(  # type: ignore[no-any-return]
        tuple(outputs), tuple(given), keep_graph, create_graph, tuple(inputs), allow_unused, accumulate_grad=False
    )


Case = Callable[[Draw], Any]


def results(case: Case, name: str) -> list[Tensor]:
    """The tensors that a case computes, in order."""
    return list(_flat(case(Draw(name))))


def _flat(found: Any) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    return [tensor for each in found for tensor in _flat(each)] if isinstance(found, (tuple, list)) else []
