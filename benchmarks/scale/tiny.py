"""The model of benchmarks/scale/true_workers.py: a layer of 68 parameters, whose step is nearly all coordination."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from benchmarks.scale import messages
from benchmarks.wide import marked
from orchestrator import Pipeline

INPUTS, OUTPUTS, SAMPLES = 16, 4, 4096


class Tiny(Pipeline):
    """marks: the folder of the marks of `benchmarks.wide`."""

    def __init__(self, marks: str) -> None:
        self.marks = marks

    def model(self) -> nn.Module:
        return nn.Linear(INPUTS, OUTPUTS)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        messages.begin(Path(self.marks).parent / "messages")
        return marked(torch.optim.AdamW(model.parameters(), lr=1e-3), Path(self.marks))

    def datasets(self) -> tuple[TensorDataset, None]:
        return TensorDataset(torch.randn(SAMPLES, INPUTS), torch.randn(SAMPLES, OUTPUTS)), None

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        return functional.mse_loss(model(inputs), targets)
