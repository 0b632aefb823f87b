"""A pipeline whose worker may have only so much memory more than it had before its model was made."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from orchestrator import Pipeline

ROWS = 16


class Narrow(Pipeline):
    """headroom_mb: of addresses, 0 for as much as there is. The limit is set where the data sets are made: only workers make
    them."""

    def __init__(self, width: int = 1024, layers: int = 32, headroom_mb: int = 0) -> None:
        self.width = width
        self.layers = layers
        self.headroom_mb = headroom_mb

    def datasets(self) -> tuple[TensorDataset, None]:
        if self.headroom_mb:
            status = Path("/proc/self/status").read_text().splitlines()
            in_use = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmSize:"))
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (in_use + self.headroom_mb * 1_000_000, hard))
        return TensorDataset(torch.randn(ROWS, self.width), torch.randint(0, 10, (ROWS,))), None

    def model(self) -> nn.Module:
        layers: list[nn.Module] = []
        for _ in range(self.layers):
            layers += [nn.Linear(self.width, self.width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(self.width, 10))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, labels = batch
        return functional.cross_entropy(model(inputs), labels)
