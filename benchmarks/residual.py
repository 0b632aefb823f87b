"""A residual network on random images of 3 x 32 x 32, for what convolutions cost (He et al., 2016, made small)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from orchestrator import Pipeline

_CLASSES = 10


class Residual(Pipeline):
    def __init__(self, channels: int = 32, blocks: int = 3, rows: int = 512) -> None:
        self.channels = channels
        self.blocks = blocks
        self.rows = rows

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, self.channels, 3, padding=1, bias=False),
            *(_Block(self.channels) for _ in range(self.blocks)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(self.channels, _CLASSES),
        )

    def datasets(self) -> tuple[TensorDataset, None]:
        generator = torch.Generator().manual_seed(5)
        images = torch.rand(self.rows, 3, 32, 32, generator=generator)
        return TensorDataset(images, torch.randint(_CLASSES, (self.rows,), generator=generator)), None

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(model(images), labels)


class _Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
        )

    def forward(self, image: Tensor) -> Tensor:
        return image + torch.as_tensor(self.inner(image))
