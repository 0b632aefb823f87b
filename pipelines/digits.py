"""Handwritten digits: a small convolutional network with batch normalisation and dropout."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from orchestrator import Pipeline

FOLDER = Path("data/digits")

Batch = tuple[Tensor, Tensor]  # images (rows, 1, 8, 8) float32 in 0..1, labels (rows,) int64


class Digits(Pipeline):
    """norm: `group` keeps no statistics of other samples, so that contributions can be clipped."""

    def __init__(self, hidden: int = 64, dropout: float = 0.25, norm: Literal["batch", "group"] = "batch") -> None:
        self.hidden = hidden
        self.dropout = dropout
        self.norm = norm

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            self._norm(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            self._norm(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(self.dropout),
            nn.Linear(32 * 4 * 4, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, 10),
        )

    def _norm(self, channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels) if self.norm == "batch" else nn.GroupNorm(4, channels)

    def datasets(self) -> tuple[TensorDataset, TensorDataset]:
        return _read("train"), _read("test")

    def labels(self, train: Dataset[Any], by: str) -> Tensor | None:
        assert isinstance(train, TensorDataset)
        return train.tensors[1] if by == "label" else None

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(model(images), labels)

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        images, labels = batch
        return {"accuracy": (model(images).argmax(1) == labels).float().mean()}


def _read(part: str) -> TensorDataset:
    images = torch.from_numpy(numpy.load(FOLDER / f"{part}_images.npy")).float() / 16
    labels = torch.from_numpy(numpy.load(FOLDER / f"{part}_labels.npy")).long()
    return TensorDataset(images, labels)
