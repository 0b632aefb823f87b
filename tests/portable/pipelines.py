"""Pipelines of the golden runs, with data made of random integers, which are the same on every processor."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from orchestrator import Pipeline

_CLASSES = 5
Batch = tuple[Tensor, Tensor]


def _data(seed: int, rows: int, *shape: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(_CLASSES, (rows,), generator=generator)
    noise = torch.randint(256, (rows, *shape), generator=generator).float() / 256
    return TensorDataset(noise + labels.view(-1, *(1 for _ in shape)) / 8, labels)


class _Classifier(Pipeline):
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, labels = batch
        return functional.cross_entropy(model(inputs), labels)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.GroupNorm(4, channels),
            nn.SiLU(),
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels),
            nn.Conv2d(channels, channels, 1),
        )

    def forward(self, image: Tensor) -> Tensor:
        return image + torch.as_tensor(self.inner(image))


class Convolutions(_Classifier):
    """A residual network with separable convolutions, trained on noisy images."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2, padding=2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            Residual(16),
            nn.AvgPool2d(2),
            Residual(16),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(16, _CLASSES),
        )

    def datasets(self) -> tuple[TensorDataset, TensorDataset]:
        return _data(1, 256, 3, 16, 16), _data(2, 32, 3, 16, 16)


class Sequences(_Classifier):
    """A bidirectional LSTM of two layers over noisy sequences."""

    def model(self) -> nn.Module:
        return _Last()

    def datasets(self) -> tuple[TensorDataset, TensorDataset]:
        return _data(3, 256, 12, 8), _data(4, 32, 12, 8)


class _Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 24, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(48, _CLASSES)

    def forward(self, sequence: Tensor) -> Tensor:
        hidden, _ = self.lstm(sequence)
        return torch.as_tensor(self.head(hidden[:, -1]))


class Twisted(_Classifier):
    """It uses an operator whose bits depend on the processor."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(96, 16), Arctangent(), nn.Linear(16, _CLASSES))

    def datasets(self) -> tuple[TensorDataset, None]:
        return _data(3, 256, 12, 8), None


class Arctangent(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.atan()


class Integrals(_Classifier):
    """It uses an operator that is on no page."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(96, 16), Bessel(), nn.Linear(16, _CLASSES))

    def datasets(self) -> tuple[TensorDataset, None]:
        return _data(3, 256, 12, 8), None


class Bessel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.special.i1e(x)
        return found
