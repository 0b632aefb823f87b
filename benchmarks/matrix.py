"""One square matrix of 25 million parameters, which costs little to compute: what is left of a step is its exchange."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from orchestrator import Pipeline


class Matrix(Pipeline):
    def __init__(self, width: int = 5000) -> None:
        self.width = width

    def model(self) -> nn.Module:
        return nn.Linear(self.width, self.width, bias=False)

    def datasets(self) -> tuple[TensorDataset, None]:
        return TensorDataset(torch.randn(64, self.width), torch.randn(64, self.width)), None

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        return functional.mse_loss(model(inputs), targets)
