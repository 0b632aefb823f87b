"""The pipeline under faults: a small network on random rows; each process that makes it has traps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from campaign.traps import installed
from orchestrator import Pipeline

FEATURES, CLASSES, WIDTH = 6, 3, 12

installed()  # here and not with the first instance: a driver that goes on with a run makes none


class Small(Pipeline):
    def __init__(self) -> None:
        self._traps = installed()

    def datasets(self) -> tuple[Any, Any]:
        return self._drawn(96), self._drawn(12)

    def _drawn(self, rows: int) -> TensorDataset:
        return TensorDataset(torch.randn(rows, FEATURES), torch.randint(CLASSES, (rows,)))

    def model(self) -> nn.Module:
        if self._traps is not None and not self._traps.in_driver:  # which builds one too, only to look at it
            self._traps.hit("prepare")
        return nn.Sequential(
            nn.Linear(FEATURES, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES)
        )

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, labels = batch
        return functional.cross_entropy(model(inputs), labels)

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        inputs, labels = batch
        return {"accuracy": (model(inputs).argmax(1) == labels).float().mean()}
