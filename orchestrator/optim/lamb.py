"""LAMB: Adam whose change is scaled for each tensor to the norm of the parameter.

Norms are of whole tensors, which every worker holds. Moments are not corrected for their start at zero, as in the paper's third
version: the scaling takes the common factor away. Source: You et al., "Large Batch Optimization for Deep Learning: Training
BERT in 76 minutes" (2020), algorithm 2; the bound of the norm is its phi.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import torch
from pydantic import Field


class Lamb(torch.optim.Optimizer):
    """State of a parameter: `exp_avg` and `exp_avg_sq`, both of its shape. Raises ValueError without parameters, and for betas
    that are not two numbers from 0 to below 1."""

    def __init__(
        self,
        params: Iterable[Any],  # as any optimizer of torch takes them
        lr: Annotated[float, Field(ge=0, description="The learning rate.")] = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),  # how much of the first and of the second moment stays in a step
        eps: Annotated[float, Field(gt=0, description="Added to the root of the second moment, and to a norm.")] = 1e-6,
        weight_decay: Annotated[float, Field(ge=0, description="Times the parameter, added to its change.")] = 0.0,
        bound: Annotated[float, Field(gt=0, description="The norm of a parameter counts up to here.")] = 10.0,
    ) -> None:
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be two numbers from 0 to below 1, got {betas}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "bound": bound})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                change = self._change(parameter, group)
                norm = torch.linalg.vector_norm(parameter).clamp_(max=group["bound"])
                length = torch.linalg.vector_norm(change)
                ratio = torch.where((norm > 0) & (length > 0), norm / (length + group["eps"]), 1.0)
                parameter.add_(change.mul_(ratio), alpha=-group["lr"])

    def _change(self, parameter: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        """Adam's, with the decay, before it is scaled."""
        assert parameter.grad is not None
        state, gradient, (first, second) = self.state[parameter], parameter.grad, group["betas"]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["exp_avg"].mul_(first).add_(gradient, alpha=1 - first)
        state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        change: torch.Tensor = state["exp_avg"] / state["exp_avg_sq"].sqrt().add_(group["eps"])
        return change.add_(parameter, alpha=group["weight_decay"])
