"""LARS: gradient descent with momentum whose rate is scaled for each tensor by the norms of parameter and gradient.

Norms are of whole tensors, which every worker holds. Scalars and vectors (biases, normalisation) are neither scaled nor
decayed. Source: You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks" (2017), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import torch
from pydantic import Field


class Lars(torch.optim.Optimizer):
    """State of a parameter: `momentum_buffer`, of its shape, unless the momentum is 0. Raises ValueError without parameters,
    and for nesterov without momentum."""

    def __init__(
        self,
        params: Iterable[Any],  # as any optimizer of torch takes them
        lr: Annotated[float, Field(ge=0, description="The learning rate.")] = 1.0,
        momentum: Annotated[float, Field(ge=0, lt=1, description="Momentum of the scaled gradients.")] = 0.9,
        weight_decay: Annotated[float, Field(ge=0, description="Times the parameter, added to its gradient.")] = 0.0,
        trust_coefficient: Annotated[
            float, Field(gt=0, description="The change of a tensor over its norm, at a rate of 1.")
        ] = 0.001,
        nesterov: Annotated[bool, Field(description="Whether to look ahead by the momentum.")] = False,
    ) -> None:
        if nesterov and momentum == 0:
            raise ValueError("nesterov needs a momentum")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(self._change(parameter, group), alpha=-group["lr"])

    def _change(self, parameter: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        assert parameter.grad is not None
        gradient, momentum = parameter.grad, group["momentum"]
        if parameter.ndim > 1:
            gradient = _scaled(gradient, parameter, group["weight_decay"], group["trust_coefficient"])
        if momentum == 0:
            return gradient
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        state["momentum_buffer"].mul_(momentum).add_(gradient)
        return gradient.add(state["momentum_buffer"], alpha=momentum) if group["nesterov"] else state["momentum_buffer"]


def _scaled(gradient: torch.Tensor, parameter: torch.Tensor, decay: float, trust: float) -> torch.Tensor:
    """The decayed gradient times the tensor's own rate; 1 where the tensor or its change is 0."""
    norm = torch.linalg.vector_norm(parameter)
    whole = torch.linalg.vector_norm(gradient) + decay * norm
    own = torch.where((norm > 0) & (whole > 0), trust * norm / whole, 1.0)
    return gradient.add(parameter, alpha=decay).mul_(own)
